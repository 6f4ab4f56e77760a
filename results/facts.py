"""What a check needs to know of a run beside its bulk tables: small, and kept by the driver."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from results.expectation import ExpectedContent
from results.load import LoadedRun
from results.logs import Source, Subscription, notices_of
from results.risks import Fault
from results.verdicts import EXACTLY_ONCE, Guarantee
from results.withheld import Notice


@dataclass(frozen=True)
class RunFacts:
    """One run or history, without its publications and deliveries.

    Attributes:
        numbers_used_once: whether the publishers' logs prove that no sequence number of a
            source was used twice; where they do not, the check looks for such numbers.
        delta: how many brokers in a row the tree is wired to get around.
        newcomers: brokers that have joined the tree since it was deployed.
        notices: by subscription and source, what was announced as withheld, in order.
        doubts: what is incomplete about the records.
    """

    run_id: str
    content: ExpectedContent
    sources: Sequence[Source]
    subscriptions: Sequence[Subscription]
    links: Sequence[tuple[str, str]]
    faults: Sequence[Fault] = ()
    guarantee: Guarantee = EXACTLY_ONCE
    calm: bool = False
    deliveries_per_pair_min: int = 100
    numbers_used_once: bool = False
    doubts: tuple[str, ...] = ()
    delta: int = 1
    newcomers: tuple[str, ...] = ()
    notices: Mapping[tuple[str, str], Sequence[Notice]] = field(default_factory=dict)

    @classmethod
    def of_run(cls, loaded: LoadedRun) -> "RunFacts":
        """The facts of a run whose tables are there."""
        run, logs = loaded.run, loaded.logs
        bars = run.workload.get("bars", {})
        return cls(
            run_id=run.run_id,
            content=run.content,
            sources=logs.sources,
            subscriptions=logs.subscriptions,
            links=run.links,
            faults=run.faults,
            guarantee=run.guarantee,
            calm=bool(run.workload.get("calm", False)),
            deliveries_per_pair_min=bars.get("deliveries_per_pair_min", 100),
            numbers_used_once=all(file.rising for file in logs.files("publications")),
            doubts=(*run.doubts, *logs.doubts),
            delta=run.delta,
            newcomers=run.newcomers,
            notices=notices_of(logs, run.moved),
        )

    @property
    def predicates(self) -> list[str]:
        """Each predicate once, in the order of the subscriptions."""
        return [*dict.fromkeys(subscription.predicate for subscription in self.subscriptions)]
