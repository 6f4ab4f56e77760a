"""The terms of a verdict: records of logs, and results. The module contains no rule.

Every checker uses these terms. Each checker derives the results by itself, so that the others
detect its mistakes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

NEVER_NS = 1 << 62
CHURN = "churn"
"""The verb of absences that belong to the workload, and are in no fault log."""
STATE_LOST = "lost state"
"""The reason of a gap for state that a broker lost; no protocol promises this reason, an operator
accepts the loss."""

# --- Records of logs ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of the fault log; None for a stage that was not reached.

    Attributes:
        target: the named target: a broker, a link, sets of brokers, a machine.
        parts: the target in the tree: brokers, links "a-b" or in a single direction "a->b",
            "client:NAME"; if unknown, the target itself.
        to: the new broker of a roam.
        err_ns: maximum error of the stamps against stamps of publications; None if the clocks were
            not compared.
        absorbed: number of publications that an absorb reports; None without a report.
    """

    fault_id: str
    verb: str
    target: str
    applied_ns: int | None
    observed_ns: int | None
    healed_ns: int | None = None
    parts: tuple[str, ...] = ()
    err_ns: int | None = 0
    to: str = ""
    absorbed: int | None = None

    @property
    def struck(self) -> frozenset[str]:
        """The affected brokers and links."""
        return frozenset(self.parts or (self.target,))


@dataclass(frozen=True, slots=True)
class Partition:
    """A broker that another broker could not reach, by names.

    Attributes:
        detector: the broker that detected the partition.
        incarnation, number: identity of the partition at its detector.
        nodes: the path from the detector to the unreachable broker, which is last.
    """

    detector: str
    incarnation: int
    number: int
    nodes: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.detector}#{self.incarnation}.{self.number}:{'-'.join(self.nodes)}"

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "Partition":
        """Read an entry of a sidecar's table of partitions."""
        return cls(
            str(values["detector"]),
            int(values["incarnation"]),
            int(values["number"]),
            tuple(map(str, values["nodes"])),
        )


@dataclass(frozen=True, slots=True)
class Notice:
    """An announcement to a subscriber that publications are withheld.

    Attributes:
        first, last: sequence numbers, both included; only matching publications count.
        place: place in the log; earlier deliveries have a lower place.
    """

    source: str
    incarnation: int
    first: int
    last: int
    partition: Partition
    place: int
    received_ns: int


@dataclass(frozen=True, slots=True)
class Gap:
    """An announcement to a subscriber of publications that do not arrive, now or ever.

    Attributes:
        source: the publisher; with the reason "lost state", maybe a stream of a broker that no
            publisher has. Such a gap names no publications; it excuses those that were sent
            before and never arrive.
        incarnation: of the publisher; of a stream that begins with a loss, its time in seconds.
        first, last: sequence numbers, both included; only matching publications count.
        place: place in the log; earlier deliveries have a lower place.
        received_ns: time of the announcement.
        absent_until_ns: publications until this time may be in the gap, whatever their age, if the
            protocol promises such gaps after an absence: its broker ended the subscription. None:
            the subscriber was not absent for that long.
    """

    source: str
    incarnation: int
    first: int
    last: int
    reason: str
    place: int
    received_ns: int = 0
    absent_until_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of publications by a subscriber, which need not arrive again after a restart.

    Attributes:
        first, last: sequence numbers, both included.
        place: place in the log; earlier deliveries have a lower place.
    """

    source: str
    incarnation: int
    first: int
    last: int
    place: int


@dataclass(frozen=True, slots=True)
class Retention:
    """The retention of a broker's stream from a time on, as the broker logged it.

    Attributes:
        stream, streams: the number of the stream, and the number of streams of the broker. A
            publisher is in the stream of its number's remainder.
        reason: of gaps in place of released publications.
        gap_age_ns: minimum age of a publication in such a gap; None: there are none.
        err_ns: maximum error of `since_ns`; None if unknown.
    """

    broker: str
    stream: int
    streams: int
    reason: str
    gap_age_ns: int | None
    since_ns: int
    err_ns: int | None = 0


@dataclass(frozen=True, slots=True)
class Promises:
    """The promises of a run's protocol; the defaults apply to runs without promises.

    Attributes:
        order: a key of ORDERS.
        topic: the attribute with the topic of a publication; "": unknown.
        gaps: permitted reasons of announced gaps; empty: no gap is permitted.
        redelivers: a subscriber that restarts may receive uncommitted publications again, with a
            mark.
        gap_age_ns: minimum age of a publication in a gap at the announcement.
        gap_ages_ns: `gap_age_ns` of the publishers of each stream of a broker, None: no gap is
            permitted; a publisher is in the stream of its number's remainder. Empty: the same for
            all.
        retentions: changes of that while brokers ran, in order of time. From event logs, not from
            the manifest.
        losses_from_ns: time since which a broker serves with a loss of state that an operator's
            signed act accepts; None: no such act. From event logs, not from the manifest.
        absence_gaps: permitted reasons of gaps that are announced to a subscriber after an absence
            from its broker for `absence_ns`. From the protocol, not from the manifest.
        may_lose: the protocol may lose publications around a failure of a broker or a session.
            From the protocol, not from the manifest.
    """

    order: str = "publisher"
    gaps: tuple[str, ...] = ()
    redelivers: bool = False
    gap_age_ns: int = 0
    topic: str = ""
    losses_from_ns: int | None = None
    absence_gaps: tuple[str, ...] = ()
    absence_ns: int = 0
    gap_ages_ns: tuple[int | None, ...] = ()
    retentions: tuple[Retention, ...] = ()
    may_lose: bool = False

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "Promises":
        """Read the promises of a run's manifest.

        Raises:
            ValueError: an unknown promise.
        """
        order, gaps = values.get("order", "publisher"), values.get("gaps", ())
        redelivers, age_ns = values.get("redelivers", False), values.get("gap_age_ns", 0)
        topic, ages_ns = values.get("topic", ""), values.get("gap_ages_ns", ())
        if order not in ORDERS:
            raise ValueError(f"order = {order!r} is none of {', '.join(ORDERS)}")
        if isinstance(gaps, str) or not all(isinstance(reason, str) for reason in gaps):
            raise ValueError(f"gaps = {gaps!r} are no reasons")
        if not isinstance(redelivers, bool):
            raise ValueError(f"redelivers = {redelivers!r} is neither true nor false")
        if type(age_ns) is not int or age_ns < 0:
            raise ValueError(f"gap_age_ns = {age_ns!r} is no duration")
        if not isinstance(topic, str):
            raise ValueError(f"topic = {topic!r} is no text")
        if isinstance(ages_ns, str) or not all(
            each is None or (type(each) is int and each >= 0) for each in ages_ns
        ):
            raise ValueError(f"gap_ages_ns = {ages_ns!r} are no durations")
        promises = cls(order, tuple(gaps), redelivers, age_ns, topic)
        return replace(promises, gap_ages_ns=tuple(ages_ns))


ORDERS: Mapping[str, str] = {
    "publisher": "publisher order",
    "total": "total order",
    "topic": "publisher order within each topic",
    "stream": "publisher order within each stream",
    "none": "",
}
"""The orders of deliveries, in words.

`total`: publisher order, and any two subscribers receive common publications in the same order.
`stream`: publications have places in streams; a subscriber receives publications of a stream by
rising places, and publications of a publisher have places in the order published. `topic`: the
same, and publications of a publisher with the same topic arrive in the order published, in any
streams. `none`: any order.
"""

STREAMS = ("topic", "stream")
"""The orders with places of deliveries in streams."""

NOT_CHECKED: Mapping[str, tuple[str, ...]] = {
    "publisher": ("order across sources",),
    "total": (),
    "topic": ("order across sources", "order across topics"),
    "stream": ("order across sources", "order across streams"),
    "none": ("order",),
}
"""The properties that a verdict does not cover, by order."""

ON_TRUST: tuple[str, ...] = (
    "the exact times of sending, receipts, acknowledgements, requested and accepted subscriptions, "
    "which one process stamps; counts of each second bound them",
    "the exact times of lost sessions, which the logs of both ends bound to half a second",
    "contents that subscribers received, and places in streams, which one process logs; "
    "incarnations of clients, reasons of lost sessions, and changed policies of early release, "
    "which one broker logs",
    "counters of brokers beyond publications received and delivered, and these as far as faults "
    "made brokers count anew or twice, or lost sessions between brokers that only forwarded; "
    "counts from before the run",
    "messages, frames and writes that faults counted, beyond publications and bytes; ends of "
    "partitions, which one broker logs",
    "moments of consumers' kills, and times in their databases and of their commits as far as the "
    "order of deliveries permits",
    "round trips in comparisons of clocks, and their number",
    "processor times and memory below what an agent or another second shows, waits for a "
    "processor, and processor shares in what limited the run",
    "the time of recovery after a burst of the load, or of more records than are evaluated",
    "the time until the brokers were ready, and the length of the drain within its phase, which "
    "the controller measured once",
    "the specification beyond guarantee, bars and parameters of the protocol, of which other files "
    "hold digests only; the size of payloads where single deliveries are not recorded",
    "the transport (plaintext or TLS), hosts that did not wait for their disks (without_fsync), "
    "priorities of brokers, and use of disks, which the controller writes alone",
    "versions, labels, and the description of machines",
    "that the folder was not made anew as a whole: files witness against each other, not for their "
    "origin",
)
"""The facts of a run that have one source, and that no verdict checks."""

WITHOUT_PROCESSES = ("simulated", "made up")
"""The labels `brokers` of runs without processes of brokers: from a simulator, or from a test."""

PROMISED = "promised"
"""The order of a guarantee without an order: the order that the protocol promises."""

PUBLISHER_ORDER = Promises()


@dataclass(frozen=True, slots=True)
class Guarantee:
    """The criteria of a run, in the words of the workload.

    Attributes:
        delivery: an element of DELIVERIES.
        order: a key of ORDERS, or PROMISED.
        gapless: no publication may be left out between deliveries.
    """

    delivery: str = "exactly-once"
    order: str = PROMISED
    gapless: bool = True

    def with_promised_order(self, promises: Promises) -> "Guarantee":
        """Return the guarantee with the order to check: the promised order if PROMISED."""
        return replace(self, order=promises.order) if self.order == PROMISED else self

    def __str__(self) -> str:
        words = ORDERS.get(self.order, "")
        return f"{self.delivery}, {words}" if words else self.delivery


DELIVERIES = ("exactly-once", "at-least-once", "at-most-once")


EXACTLY_ONCE = Guarantee()

# --- Results -------------------------------------------------------------------------------------

DOUBTS: Mapping[str, str] = {
    "unsealed": "the run has no seal: changes of its files since the run cannot be detected",
    "state": "the run is {state}",
    "not_measured": "the run never reached its measure phase",
    "other_spec": "the manifest has {name} {found!r}, the specification {wanted!r}",
    "saturated": "the load generators could not hold their rate: lower the rate, free this machine "
    "of other work, or permit more lateness (thresholds, loadgen.lateness_p99)",
    "no_log": "there is no log of {who}",
    "load_ended": "{file}: load generator {who} ended in the middle of the run ({why}); the rest "
    "of its logs was never written",
    "never_started": "subscription {who} was never accepted",
    "open_log": "the log of {who} is not complete",
    "still_arriving": "deliveries were still arriving when the drain ended, after {s:.0f} s: "
    "outstanding ones may not be lost",
    "outstanding": "{n:,} owed deliveries were outstanding when the drain ended: on an overloaded "
    "machine they may have been late, and not lost",
    "lost_busy": "{n:,} owed deliveries never arrived, and the protocol may lose publications "
    "around a failure: on an overloaded machine a live broker or client may have been suspected",
    "withheld_busy": "{n:,} publications were announced as withheld, and no fault explains it: on "
    "an overloaded machine a live broker may have been suspected",
    "silent_client": "{file}: the session of {client} with {broker} ended in silence, {s:.1f} s "
    "after the start of the measurement, and no fault explains it",
    "silent_broker": "{file}: the session of {broker} with {peer} ended in silence, {s:.1f} s "
    "after the start of the measurement, and no fault explains it",
    "no_statistics": "{file}: {who} recorded no sample for {gap:.1f} s, {s:.1f} s after the start "
    "of the measurement, and no fault explains it",
    "short_of_cpu": "manifest.json: {who} waited for a processor in {share:.0%} of the measurement",
    "withheld_without_time": "subscription {who} received a notice of withheld publications of "
    "{source}, and the times of its request and acceptance are unknown",
    "late_start": "subscription {who} was accepted after {source} had sent its opening fence",
    "closed_early": "source {source} sent its closing fence before the measurement ended",
    "numbers": "source {source}, incarnation {incarnation}: {n:,} of the numbers up to {highest} "
    "are not in its publisher's log, the first is {first}",
    "unreserved": "source {source} used numbers up to {highest} before they were reserved",
    "unanswered": "source {source}, incarnation {incarnation}: {n:,} matching publications were "
    "not acknowledged and not delivered, although later ones were; the first is {first}",
    "not_in_workload": "{who} is not in the workload",
    "twice": "two logs are of {what}",
    "elsewhere": "{who} was at {found}; the workload has {wanted}",
    "other_predicate": "{who} requested {found!r}; the workload has {wanted!r}",
    "no_fences": "source {source} has no opening and closing fence",
    "other_content": "source {source} published other content than the seed determines",
    "kind": "{n:,} deliveries are logged as fences and are none, or vice versa",
    "too_soon": "{n:,} deliveries were received before they were sent",
    "untimed": "{n:,} rows of {who} have no time",
    "clock_back": "the clock of {who} moved back by {s:.3f} s",
    "not_logged": "fault {fault} was planned and is not in the fault log",
    "not_planned": "fault {fault} is in the fault log and was never planned",
    "other_fault": "fault {fault} is not what was planned",
    "no_fault_log": "the run had a fault schedule and its fault log is empty",
    "fault_failed": "fault {fault} ({verb} {target}) failed: {why}",
    "not_applied": "fault {fault} ({verb} {target}) was not applied",
    "not_observed": "fault {fault} ({verb} {target}) was not observed",
    "stages": "fault {fault} ({verb} {target}) ended or was observed before it was applied",
    "no_clock": "the clocks were not compared: fault {fault} ({verb} {target}) put nothing at risk "
    "for certain",
    "absorbed_nothing": "fault {fault} ({verb} {target}) reports that it absorbed nothing, and "
    "{n:,} deliveries were sent through it",
    "absorb_silent": "fault {fault} ({verb} {target}) does not report what it absorbed",
    "absorbed_little": "only {n} publications were absorbed; the schedule requires {minimum}",
    "spared": "nothing was at risk for the subscribers at {brokers}",
    "disagree": "{one} and {other} disagree on {what}: {found!r} and {wanted!r}",
    "missing_file": "{file} is missing, and {other} shows that it was written",
    "older_schema": "{file} is of schema {schema!r}, and folders of this schema lack a second "
    "witness of {what}: {other} has none",
    "strange_file": "{file} is no file of a run, and was added to the folder",
    "strange_key": "{file} has {key!r}, which no process writes there",
    "lost_key": "{file}: {what} have no {key!r}, which each process writes there",
    "missing_line": "{file} has no line about {what}, and {other} shows that it was written",
    "unreadable": "{file} differs from what was written: {why}",
    "fences": "publications.rec and online.json: the fences of source {source} are {found}; its "
    "first number and its highest are {wanted}",
    "new_incarnation": "publications.rec: source {source} began incarnation {incarnation}, and "
    "neither sessions.jsonl nor faults/faults.jsonl has a reason for it",
    "gap_of_nothing": "{file}: {who} received a gap {first} to {last} of {source}, and "
    "publications.rec has no such publications",
    "gap_over_fence": "{file}: {who} received a gap {first} to {last} of {source}, and "
    "publications.rec has a fence in it",
    "gap_when": "{file}: {who} received a gap {first} to {last} of {source} before "
    "publications.rec has it sent, or after the end of the run in manifest.json",
    "gap_without_absence": "{file}: {who} received a gap {first} to {last} of {source}, and "
    "neither sessions.jsonl, absences.jsonl nor faults/faults.jsonl has an absence before it",
    "gap_without_loss": "{file}: {who} received a report that {first} to {last} of {source} were "
    "lost, and no events.jsonl has a loss accepted since publications.rec has them sent",
    "passed_outage": "deliveries.rec and {file} disagree: {n:,} deliveries passed while {why} let "
    "nothing pass",
    "answered_outage": "acks.rec and {file} disagree: {n:,} acknowledgements are from a broker "
    "that {why} had stopped",
    "stats_go_on": "{file} and {other} disagree: {n} lines were written while {fault} had stopped "
    "the broker",
    "stats_stop": "{file} and {other} disagree: nothing was written for {s:.1f} s from {at_s:.1f} s"
    " on, and no fault explains it",
    "broker_logged": "{file}: the broker logged {event} ({why}), {s:.1f} s after the start of the "
    "measurement, and faults/faults.jsonl has no such fault",
    "exit_of_no_fault": "{file} and {other} disagree: the broker ended by {cause}",
    "not_in_log": "{one} and {other} disagree: only the first has fault {fault}",
    "stage_order": "{file} and faults/log.jsonl: fault {fault} was {after} before it was {before}",
    "fault_outside": "{file} and {other} disagree: fault {fault} was {stage} outside the run",
    "sessions_apart": "{one} and {other} disagree: {event} of {who} is {s:.1f} s apart",
    "no_session": "sessions.jsonl and {other} disagree: only the second has client {who}",
    "no_pair": "there is no subscription that started, or no source",
    "too_few": "{n:,} deliveries of {source} are owed to subscription {who}; the workload requires "
    "{minimum:,} of every source to every subscription",
    "none_owed": "no delivery was owed",
    "no_churn": "the workload disconnects subscribers, and no file records an absence",
    "phase_length": "manifest.json: phase {phase} lasted {found}; spec/workload.toml has {wanted}",
    "phase_origin": "manifest.json: phase {phase} began {s:.3f} s after its own origin",
    "phases_overlap": "manifest.json: phase {after} began before phase {before} ended",
    "drain_length": "manifest.json: the drain lasted {found}; its own record and "
    "spec/workload.toml have {wanted}",
    "sent_early": "{file}: {n:,} publications of {source} were sent before spec/workload.toml has "
    "them",
    "off_schedule": "{file}: {n:,} intended times of {source} are not those of the schedule of "
    "spec/workload.toml; the first is of publication {first}",
    "schedule_unmet": "{file}: {source} sent its closing fence after {n:,} publications, fewer "
    "than in the schedule of spec/workload.toml",
    "late_unreported": "{file}: {n:,} publications were sent more than {ms:.0f} ms late; "
    "manifest.json reports that the load generators held their rate, and stats.jsonl no cause of a "
    "delay",
    "outside": "{file}: {n:,} records are stamped outside the phases of manifest.json",
    "sample": "{file}: one block in {found} has its own times; spec/workload.toml: load.records = "
    "{wanted!r}",
    "stretches": "{file}: {n:,} deliveries have no time of their own; spec/workload.toml: "
    "load.records = 'full'",
    "long_stretch": "{file}: {n:,} stretches last up to {ms} ms while other deliveries arrived; "
    "load.records of spec/workload.toml ends one after 100 ms",
    "other_digest": "{file}: the digest of the specification is {found}, and that of spec/ is "
    "{wanted}",
    "no_digest": "{file} has no digest of the specification, and manifest.json is of a version "
    "that has one",
    "other_promises": "log.jsonl: the brokers promised {found!r} when the run began; manifest.json "
    "has {wanted!r}",
    "no_topic": "no file names the topic attribute: order within topics was not checked",
    "unplaced": "{n:,} deliveries to subscription {who} have no place in a stream: their order "
    "there was not checked",
    "no_risk": "nothing was at risk: no publication was sent through a fault",
}


def doubt(kind: str, **values: Any) -> str:
    """Return a doubt, which leaves a verdict open, in words."""
    return DOUBTS[kind].format(**values)


VerdictName = Literal["VALID", "INVALID", "UNKNOWN"]
EXIT_STATUS: Mapping[str, int] = {"VALID": 0, "INVALID": 1, "UNKNOWN": 3}

VIOLATIONS: Mapping[str, str] = {
    "missing": "owed and never delivered",
    "fence_missing": "fences, owed to every subscription, that never arrived",
    "left_out": "left out before the opening fence or after the closing one, between deliveries",
    "duplicate": "delivered more than once",
    "reordered": "delivered after a later one of its source",
    "order_differs": "delivered in another order than to another subscription",
    "place_back": "delivered after a later place of its stream",
    "place_taken": "at another place of its stream than elsewhere, or at another one's place",
    "place_order": "placed in its stream before an earlier one of its source",
    "phantom": "delivered although its publisher never sent it",
    "rejected": "delivered although its publication was refused",
    "wrong_match": "delivered although the predicate does not match it",
    "corrupted": "delivered with other content than was published",
    "sequence_reuse": "a sequence number was used for two publications",
    "gap_not_permitted": "declared lost although nothing may be lost",
    "gap_unpromised": "announced as a gap for a reason that the protocol does not promise",
    "gap_early": "announced as a gap sooner than the protocol promises",
    "gap_delivered": "delivered, and announced as a gap",
    "withheld_unjustified": "announced as withheld, and no fault explains it",
    "withheld_late": "announced as withheld after a delivery of its source",
    "withheld_delivered": "delivered although it, or a later one, had been announced as withheld",
}


@dataclass(frozen=True, slots=True)
class RiskWindow:
    """A time in which publications through a target may have been lost.

    Attributes:
        fault_ids: the fault that opened the window, and the fault that ended the window.
        verb: verb of the first fault, for example "absorb".
        target: named target of the first fault.
        ended_by: "kill", "cut", "release" (healed), or "" for a window until the end of the run.
        parts: brokers and links; publications through any part were at risk.
        err_ns: maximum error of both ends against the stamps of publications.
    """

    fault_ids: tuple[str, ...]
    verb: str
    target: str
    from_ns: int
    to_ns: int
    ended_by: str
    parts: frozenset[str]
    err_ns: int


@dataclass(frozen=True, slots=True)
class Recovery:
    """The outcome of the deliveries that a window put at risk.

    Attributes:
        recovered_after_ns: time from the window's end to the last arrival of these deliveries; None
            without an arrival or without an end.
    """

    window: RiskWindow
    at_risk: int
    recovered: int
    recovered_after_ns: int | None


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of all checkers, which must agree.

    Always: owed = delivered + missing + undecided.

    Attributes:
        pairs: number of pairs of subscription and source, without subscriptions that never started.
        owed: number of matching data publications between the fences, summed over pairs, without
            withheld publications and publications in announced gaps.
        delivered: number of owed publications that arrived at least once.
        undecided: number of owed publications that did not arrive but may have, because a log is
            incomplete.
        least_owed: the pair with the fewest owed publications: subscription, source, number; the
            first by name of several pairs. None without any pair.
        at_risk, recovered: number of owed publications at risk, and of recovered publications among
            them.
        violations: number of violations by kind; kinds without violations are absent.
        withheld: number of matching data publications between the fences that were announced as
            withheld and never arrived, by partition.
        announced: number of publications in promised announced gaps that never arrived, by reason.
        redelivered: number of permitted redeliveries.
        outstanding: number of missing deliveries and fences behind the last arrival of the source,
            or of the topic: lost or late.
    """

    pairs: int
    owed: int
    delivered: int
    at_risk: int
    recovered: int
    violations: Mapping[str, int] = field(default_factory=dict)
    withheld: Mapping[str, int] = field(default_factory=dict)
    undecided: int = 0
    least_owed: tuple[str, str, int] | None = None
    announced: Mapping[str, int] = field(default_factory=dict)
    redelivered: int = 0
    outstanding: int = 0

    @property
    def missing(self) -> int:
        """The number of owed publications that certainly never arrived."""
        return self.owed - self.delivered - self.undecided
