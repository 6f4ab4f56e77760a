"""Facts of a run for a check, beside its bulk tables: small, and kept by the driver."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from results.rules.absences import absences_of, doubts_about_churn, with_absences
from results.rules.busyness import busy_signs, has_ended_in_silence
from results.rules.expectation import ExpectedContent
from results.rules.losses import find_sent_again, promises_with_losses
from results.rules.retentions import promises_with_retentions
from results.rules.risks import Routes
from results.rules.specification import specification_doubts
from results.rules.terms import (
    EXACTLY_ONCE,
    PUBLISHER_ORDER,
    STREAMS,
    Commit,
    Fault,
    Gap,
    Guarantee,
    Notice,
    Promises,
)
from results.rules.timing import find_timing_doubts
from results.tables.load import LoadedRun
from results.tables.logs import (
    Logs,
    Source,
    Subscription,
    commits_of,
    gaps_of,
    notices_of,
)
from results.tables.manifest import Run
from results.tables.row_counts import rows_of
from results.witnesses import RunFolder, doubts_of_witnesses
from results.witnesses.online import findings_online


@dataclass(frozen=True)
class RunFacts:
    """A run or history, without publications and deliveries.

    Attributes:
        faults: faults of the fault log, and the absences of churn.
        numbers_used_once: the publishers' logs prove that no sequence number of a source was used
            twice; otherwise the check searches for repeated numbers.
        topic: the attribute with the topic of a publication; "": unknown.
        topic_counts: the topic attribute counts publications.
        placed: every delivery must have a place in a stream.
        busy: signs of a machine that was short of time.
        in_silence: the drain ended before evidence that everything had arrived.
        links: links of the tree, or of another overlay, which has routes.
        delta: number of consecutive failed brokers that the tree is wired to bypass.
        newcomers: brokers that have joined the tree since its deployment.
        notices: notices of withheld publications in order, by subscription and source.
        promises: the promises of the protocol about deliveries.
        gaps: announced gaps in order, by subscription and source.
        commits: commits of the application in order, by subscription and source.
        doubts: doubts about incomplete records.
        clock_errors: maximum difference between the clocks of both stamps, by subscription and
            source; None if unknown; absent for a common clock.
        timeline_errors: maximum error of stamps on the run's time line, by source.
        measured_until_ns: the end of the measure phase; None if unknown.
        online: violations that the online checkers found, by kind.
        sent_again: by source, incarnation and number of publications without an acknowledgement
            when their broker began with an accepted loss; total order does not hold for them.
    """

    run_id: str
    content: ExpectedContent
    sources: Sequence[Source]
    subscriptions: Sequence[Subscription]
    links: Sequence[tuple[str, str]]
    faults: Sequence[Fault] = ()
    guarantee: Guarantee = EXACTLY_ONCE
    calm: bool = False
    deliveries_per_pair_min: int = 0
    numbers_used_once: bool = False
    doubts: tuple[str, ...] = ()
    delta: int | None = 1
    newcomers: tuple[str, ...] = ()
    notices: Mapping[tuple[str, str], Sequence[Notice]] = field(default_factory=dict)
    clock_errors: Mapping[tuple[str, str], int | None] = field(default_factory=dict)
    timeline_errors: Mapping[str, int | None] = field(default_factory=dict)
    measured_until_ns: int | None = None
    promises: Promises = PUBLISHER_ORDER
    gaps: Mapping[tuple[str, str], Sequence[Gap]] = field(default_factory=dict)
    commits: Mapping[tuple[str, str], Sequence[Commit]] = field(default_factory=dict)
    routes: Routes | None = None
    online: Mapping[str, int] = field(default_factory=dict)
    topic: str = ""
    topic_counts: bool = False
    placed: bool = False
    busy: tuple[str, ...] = ()
    in_silence: bool = False
    sent_again: Mapping[str, frozenset[tuple[int, int]]] = field(default_factory=dict)

    @classmethod
    def from_run(cls, loaded: LoadedRun) -> "RunFacts":
        run, logs = loaded.run, loaded.logs
        absences = [*absences_of(run, logs)]
        topic = str(run.workload.get("topic") or run.promises.topic)
        bars = run.workload.get("bars", {})
        rows = rows_of(run, logs)
        sent_again = find_sent_again(run, logs)
        return cls(
            run_id=run.run_id,
            content=run.content,
            sources=logs.sources,
            subscriptions=logs.subscriptions,
            links=run.links,
            faults=[*run.faults, *absences],
            guarantee=run.guarantee.with_promised_order(run.promises),
            calm=bool(run.workload.get("calm", False)),
            deliveries_per_pair_min=bars.get("deliveries_per_pair_min", 0),
            numbers_used_once=all(file.scan.rising for file in logs.files("publications")),
            doubts=(
                *run.doubts,
                *logs.doubts,
                *doubts_about_churn(run.workload, absences),
                *doubts_of_witnesses(RunFolder(run.folder, run), rows),
                *specification_doubts(run),
                *find_timing_doubts(run, logs),
            ),
            delta=run.delta,
            newcomers=run.newcomers,
            notices=notices_of(logs, run.to_timeline),
            clock_errors=_clock_errors(run, logs),
            timeline_errors=_timeline_errors(run, logs),
            measured_until_ns=run.phase("measure").to_ns if run.has_measured else None,
            promises=promises_with_retentions(promises_with_losses(run, logs), run, logs),
            gaps=with_absences(gaps_of(logs, run.to_timeline), run, logs),
            commits=commits_of(logs),
            routes=run.routes,
            online=findings_online(
                RunFolder(run.folder, run), rows, has_sent_again=bool(sent_again)
            ),
            sent_again=sent_again,
            topic=topic,
            topic_counts=_counts(run.workload.get("attributes", {}).get(topic)),
            placed=run.promises.order in STREAMS and not run.is_simulated,
            busy=tuple(busy_signs(run, logs)),
            in_silence=has_ended_in_silence(run),
        )

    @property
    def order(self) -> str:
        """The order of the guarantee, which judges the run under any promise."""
        return self.guarantee.with_promised_order(self.promises).order

    @property
    def has_topics(self) -> bool:
        """True if the topic of a publication follows from the attribute set."""
        return bool(self.topic) and not self.topic_counts

    @property
    def lane(self) -> str:
        """The publications of a source that must arrive in the order published.

        All publications ("source"), the publications of a topic ("topic"), or none (""). A protocol
        of publisher order has a stream per source.
        """
        if self.order == "topic":
            return "topic" if self.has_topics else ""
        of_sources = self.promises.order in ("publisher", "total")
        return "source" if _is_of_sources(self.order, has_source_streams=of_sources) else ""

    @property
    def predicates(self) -> list[str]:
        """The distinct predicates, in the order of the subscriptions."""
        return [*dict.fromkeys(subscription.predicate for subscription in self.subscriptions)]


def _counts(definition: Any) -> bool:
    return isinstance(definition, Mapping) and "sequence" in definition


def _is_of_sources(order: str, *, has_source_streams: bool) -> bool:
    return order in ("publisher", "total") or (order == "stream" and has_source_streams)


def _clock_errors(run: Run, logs: Logs) -> dict[tuple[str, str], int | None]:
    """Return the clock errors by subscription and source, except for common clocks."""
    hosts = logs.hosts_of("subscriptions"), logs.hosts_of("publishers")
    found = {}
    between: dict[tuple[str, str], int | None] = {}
    for subscription, here in hosts[0].items():
        for source, there in hosts[1].items():
            if (here, there) not in between:
                between[here, there] = run.clock_error_ns(here, there)
            if between[here, there] != 0:
                found[subscription, source] = between[here, there]
    return found


def _timeline_errors(run: Run, logs: Logs) -> dict[str, int | None]:
    hosts = logs.hosts_of("publishers")
    return {
        source: run.clock_error_ns(host, run.clocks.reference) for source, host in hosts.items()
    }
