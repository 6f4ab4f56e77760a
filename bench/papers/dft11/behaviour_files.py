"""Experiments on the protocol's behaviour around a failure, on simulated brokers.

The paper has no figure for these measures: the time of a bypass, the time until a subscription
starts, the cost of fault tolerance in duplicates and bytes, the publications that a partition
excludes and for how long, and the queue at the edge of a partition. Every draw is a small story of
`behaviour_experiments`, judged by the oracle as everything on simulated brokers.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from bench.spec.experiment import ExperimentFile
from brokerd.errors import ConfigError
from brokerd.overlay.generate import MAXIMUM_BROKERS
from brokerd.overlay.tree_section import MAXIMUM_DELTA
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters

Row = dict[str, Any]
Tables = dict[str, list[Row]]
Delta = Annotated[int, Field(ge=0, le=MAXIMUM_DELTA, strict=True)]
Deltas = Annotated[list[Delta], Field(min_length=1)]
Count = Annotated[int, Field(ge=0, strict=True)]
Counts = Annotated[list[Count], Field(min_length=1)]
Positive = Annotated[int, Field(ge=1, le=100_000, strict=True)]
Positives = Annotated[list[Positive], Field(min_length=1)]
Brokers = Annotated[int, Field(ge=3, le=MAXIMUM_BROKERS, strict=True)]
Fanout = Annotated[int, Field(ge=2, le=1_000, strict=True)]


class BehaviourExperiment(ExperimentFile):
    """The common keys of these experiments: the figure, the draws per point and the seed."""

    schema_: Annotated[Literal["pubsubctl/behaviour-experiment/1"], Field(alias="schema")]
    runs: Annotated[int, Field(ge=1, le=1000, strict=True)] = 1

    @abstractmethod
    def points(self) -> list[Row]:
        """Return the points of the experiment, as columns that distinguish the points."""

    def scale(self) -> Row:
        return {"runs": self.runs}


class BypassExperiment(BehaviourExperiment):
    """The time from a silent failure until deliveries behind it continue.

    Attributes:
        suspicion_ms: silence after which a peer is suspected; heartbeats are sent three times as
            often.
        publish_every_ms: resolution of the times.
    """

    question: Literal["bypass"]
    brokers: Brokers
    fanout: Fanout
    deltas: Deltas
    suspicion_ms: Positives
    publish_every_ms: Positive = 20

    @model_validator(mode="after")
    def _tolerates_one(self) -> "BypassExperiment":
        if 0 in self.deltas:
            raise ValueError("deltas: with δ = 0 nothing bypasses a failed broker")
        return self

    def points(self) -> list[Row]:
        return [
            {"delta": delta, "suspicion_ms": silence}
            for delta in self.deltas
            for silence in self.suspicion_ms
        ]

    def scale(self) -> Row:
        return {"brokers": self.brokers, "runs": self.runs}


class StartsExperiment(BehaviourExperiment):
    """The time until subscriptions start, in trees of several sizes with failed brokers.

    Attributes:
        failed_percent: share of brokers that fail for good before any subscription.
        subscriptions: number of subscriptions per draw, in sequence, at brokers drawn from the live
            brokers.
    """

    question: Literal["starts"]
    brokers: Annotated[list[Brokers], Field(min_length=1)]
    fanout: Fanout
    deltas: Deltas
    failed_percent: Annotated[
        list[Annotated[int, Field(ge=0, le=50, strict=True)]], Field(min_length=1)
    ]
    subscriptions: Positive = 10

    def points(self) -> list[Row]:
        return [
            {"brokers": brokers, "delta": delta, "failed_percent": failed}
            for brokers in sorted(self.brokers, reverse=True)
            for delta in self.deltas
            for failed in self.failed_percent
        ]

    def scale(self) -> Row:
        return {"brokers": max(self.brokers), "runs": self.runs}


class OverheadExperiment(BehaviourExperiment):
    """Duplicates and bytes between brokers, per delivery.

    Attributes:
        failed: number of brokers that fail silently for good during the first half of the window.
        variants: parameters of delta_tree by the name of the variant; {} is the default.
    """

    question: Literal["overhead"]
    brokers: Brokers
    fanout: Fanout
    deltas: Deltas
    failed: Counts
    measured_s: Positive
    publications_per_s: Positive
    payload_bytes: Annotated[int, Field(ge=0, le=65_536, strict=True)] = 100
    variants: Annotated[dict[str, dict[str, bool | int | str]], Field(min_length=1)]

    @model_validator(mode="after")
    def _sound(self) -> "OverheadExperiment":
        if max(self.failed) > self.brokers - 2:
            raise ValueError(f"failed = {max(self.failed)} of {self.brokers}; two must be left")
        for name, values in self.variants.items():
            try:
                DeltaTreeParameters.from_mapping(dict(values), f"variants.{name}")
            except ConfigError as error:
                raise ValueError(str(error)) from None
        return self

    def points(self) -> list[Row]:
        return [
            {"variant": variant, "delta": delta, "failed": failed}
            for variant in self.variants
            for delta in self.deltas
            for failed in self.failed
        ]

    def scale(self) -> Row:
        return {"brokers": self.brokers, "measured_s": self.measured_s, "runs": self.runs}


class _ChainExperiment(BehaviourExperiment):
    """A line of brokers with a publisher at one end and a subscriber at the other.

    Attributes:
        lengths: numbers of consecutive brokers in the middle that fail.
    """

    brokers: Brokers
    delta: Annotated[int, Field(ge=1, le=MAXIMUM_DELTA, strict=True)]
    lengths: Positives
    publications_per_s: Positive

    @model_validator(mode="after")
    def _has_ends(self) -> "_ChainExperiment":
        if max(self.lengths) > self.brokers - 4:
            raise ValueError(
                f"lengths: {max(self.lengths)} in a row of {self.brokers}; two must be left at "
                "each end"
            )
        return self

    def scale(self) -> Row:
        return {
            "brokers": self.brokers,
            "delta": self.delta,
            "runs": self.runs,
            "failed_in_a_row": max(self.lengths),
        }


class ExclusionsExperiment(_ChainExperiment):
    """Publications that a subscription made during a partition misses, and the end of this state.

    Attributes:
        partitioned_s: length of the partition from the subscription on.
    """

    question: Literal["exclusions"]
    partitioned_s: Positives

    def scale(self) -> Row:
        return {**super().scale(), "partitioned_s": max(self.partitioned_s)}

    def points(self) -> list[Row]:
        return [
            {"length": length, "partitioned_s": lasts}
            for length in self.lengths
            for lasts in self.partitioned_s
        ]


class QueueExperiment(_ChainExperiment):
    """The number of queued publications at the broker before the failed brokers, over time.

    Attributes:
        before_s, broken_s, after_s: time without failures, with failed brokers, and without again.
    """

    question: Literal["queue"]
    before_s: Positive
    broken_s: Positive
    after_s: Positive
    sample_every_ms: Positive = 100

    def scale(self) -> Row:
        return {**super().scale(), "broken_s": self.broken_s}

    def points(self) -> list[Row]:
        return [{"length": length} for length in self.lengths]


KINDS: Mapping[str, type[BehaviourExperiment]] = {
    "bypass": BypassExperiment,
    "starts": StartsExperiment,
    "overhead": OverheadExperiment,
    "exclusions": ExclusionsExperiment,
    "queue": QueueExperiment,
}
