"""Experiments on topics behind proxies, on simulated brokers: files, points and rows.

The report does not measure these, and a simulated clock is more exact than a busy machine: the
distribution of topics over servers, the effect of a stalled server, the promises after a crash at
any point, and the repetitions of requests to a slow server.

Paper: [MP22] §3, §4, which measures nothing itself.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from bench.run.experiment_folder import ExperimentFile
from brokerd.protocols.multi_proxy.parameters import ARBITER, CAUSAL, PAPER, RENDEZVOUS

Row = dict[str, Any]
Tables = dict[str, list[Row]]
Few = Annotated[int, Field(ge=1, le=16, strict=True)]
Count = Annotated[int, Field(ge=1, le=100_000, strict=True)]
Counts = Annotated[list[Count], Field(min_length=1)]
Percent = Annotated[int, Field(ge=1, le=100, strict=True)]
Ownership = Literal["arbiter", "rendezvous", "causal", "paper"]

CRASH_POINTS: Final[Mapping[str, str]] = {
    "C1": ARBITER,
    "C2": ARBITER,
    "C3": ARBITER,
    "C4": ARBITER,
    "C5": ARBITER,
    "C6": ARBITER,
    "C7": ARBITER,
    "C9": ARBITER,
    "C10": ARBITER,
    "C11": CAUSAL,
    "C12": CAUSAL,
    "C13-pending": ARBITER,
    "C13-assigned": ARBITER,
    "C13-owned": ARBITER,
    "C14-decided": ARBITER,
    "C14-frozen": ARBITER,
    "C14-taken": ARBITER,
    "C14-given": ARBITER,
    "C14-owned": ARBITER,
}
"""The design's crash points on simulated brokers, with the ownership that has the point."""


class ProxyExperiment(ExperimentFile):
    """The common keys of these experiments.

    Attributes:
        runs: draws of each point.
    """

    schema_: Annotated[Literal["pubsubctl/proxy-experiment/1"], Field(alias="schema")]
    runs: Annotated[int, Field(ge=1, le=1000, strict=True)] = 1
    proxies: Few = 2
    servers: Few

    @abstractmethod
    def points(self) -> list[Row]:
        """Return the points of the experiment, as columns that distinguish the points."""

    def scale(self) -> Row:
        return {"servers": self.servers, "runs": self.runs}


class SpreadExperiment(ProxyExperiment):
    """The number of topics that each server owns.

    Attributes:
        topics: number of topics.
        asked_percent: share of topics, drawn at random, that each of two access brokers requests,
            over two proxies.
    """

    question: Literal["spread"]
    topics: Annotated[int, Field(ge=8, le=4096, strict=True)]
    asked_percent: Percent
    ownerships: Annotated[list[Ownership], Field(min_length=1)]

    def points(self) -> list[Row]:
        return [{"ownership": ownership} for ownership in self.ownerships]

    def scale(self) -> Row:
        return {**super().scale(), "topics": self.topics}


class StallExperiment(ProxyExperiment):
    """The effect of a server that receives everything and answers nothing, dies, and restarts.

    Attributes:
        topics: number of values, published equally often.
        before_s, stalled_s, down_s, after_s: length of each part.
    """

    question: Literal["stall"]
    topics: Annotated[int, Field(ge=2, le=64, strict=True)]
    publications_per_s: Count
    before_s: Few
    stalled_s: Few
    down_s: Few
    after_s: Few

    def points(self) -> list[Row]:
        return [{"ownership": ARBITER}]

    def scale(self) -> Row:
        return {**super().scale(), "down_s": self.down_s}


class CrashExperiment(ProxyExperiment):
    """The promises of the protocol after a crash at each of the design's crash points.

    Attributes:
        crash_points: names of crash points.
        publications: publications of each of two publishers during the story.
    """

    question: Literal["crashes"]
    crash_points: Annotated[list[str], Field(min_length=1)]
    publications: Annotated[int, Field(ge=4, le=1000, strict=True)]

    @model_validator(mode="after")
    def _known(self) -> "CrashExperiment":
        for point in self.crash_points:
            if point not in CRASH_POINTS:
                raise ValueError(f"crash_points: {point!r} is none of {', '.join(CRASH_POINTS)}")
        return self

    def points(self) -> list[Row]:
        return [
            {"crash_point": point, "ownership": CRASH_POINTS[point]} for point in self.crash_points
        ]


class TimeoutExperiment(ProxyExperiment):
    """The number of repeated puts of publications that a stalled server has not stored.

    Attributes:
        timeouts_ms: initial timeouts of an access broker.
        stalls_ms: lengths of the stall.
    """

    question: Literal["timeouts"]
    publications_per_s: Count
    timeouts_ms: Counts
    stalls_ms: Counts

    def points(self) -> list[Row]:
        return [
            {"timeout_ms": timeout, "stall_ms": stall}
            for timeout in self.timeouts_ms
            for stall in self.stalls_ms
        ]

    def scale(self) -> Row:
        return {**super().scale(), "stall_ms": max(self.stalls_ms)}


KINDS: Final[Mapping[str, type[ProxyExperiment]]] = {
    "spread": SpreadExperiment,
    "stall": StallExperiment,
    "crashes": CrashExperiment,
    "timeouts": TimeoutExperiment,
}
OWNERSHIPS: Final = (ARBITER, RENDEZVOUS, CAUSAL, PAPER)
