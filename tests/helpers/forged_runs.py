"""Forgeries: changes that make an invalid run folder look VALID, and the expected verdicts.

Each forgery changes the files of a synthetic honest run, and seals the files again. The online
checker reads no file but receives deliveries and notices, so it detects some kinds only.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from results.tables.record_files import NOTICE, RECORDS
from results.tables.seals import seal
from tests.helpers.runs import ORIGIN_NS, SECOND, Scenario, write_demo_run, write_lines

DURATION = {"rate": 10, "measure_s": 3.0, "stall_s": 0.5, "kill_s": 1.0, "restart_s": 2.0}
PUBLISHERS, NEAR, FAR = "local1/load-publishers", "local2/load-local2", "local3/load-local3"
"""The processes with the publishers at p1, the subscribers at s1 and s2, and all others."""
S1, S2 = 0, 1
LAST = 42  # sequence number of each publisher's closing fence
WITHHELD = 15  # to s1, of each source, behind the gate

Outcome = Literal["refused", "doubt", "violation"]


class RunFolder:
    """The files of a run, open for changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str) -> Path:
        return self.folder / name

    @contextmanager
    def records(self, process: str, layout: str) -> Iterator["Rows"]:
        """Open the records of a log; write the records back with a matching sidecar."""
        path = self.path(f"raw/{process}/{layout}.rec")
        sidecar_path = path.with_name(path.name + ".json")
        sidecar = json.loads(sidecar_path.read_text())
        rows = Rows(np.fromfile(path, RECORDS[layout]), sidecar)
        yield rows
        data = rows.all.tobytes()
        path.write_bytes(data)
        sidecar |= {"rows": len(rows.all), "blake2b": hashlib.blake2b(data).hexdigest()}
        sidecar_path.write_text(json.dumps(sidecar))

    @contextmanager
    def lines(self, name: str) -> Iterator[list[dict[str, Any]]]:
        """Open the lines of a JSON lines file."""
        rows = [json.loads(line) for line in self.path(name).read_text().splitlines()]
        yield rows
        write_lines(self.path(name), rows)

    @contextmanager
    def document(self, name: str) -> Iterator[dict[str, Any]]:
        """Open a JSON document."""
        content = json.loads(self.path(name).read_text())
        yield content
        self.path(name).write_text(json.dumps(content))

    def replace(self, name: str, old: str, new: str) -> None:
        """Replace a piece of a text file."""
        text = self.path(name).read_text()
        assert old in text, f"{old!r} is not in {name}"
        self.path(name).write_text(text.replace(old, new))

    @contextmanager
    def fault(self, number: int) -> Iterator[dict[str, Any]]:
        """Open one line of the fault log: 0 is the absorb, 1 the kill, 2 the restart."""
        with self.lines("faults/faults.jsonl") as rows:
            yield rows[number]

    @contextmanager
    def subscription(self) -> Iterator[dict[str, Any]]:
        """Open the log of the subscription at s1."""
        with self.lines(f"raw/{NEAR}/subscriptions.jsonl") as rows:
            yield rows[0]


@dataclass
class Rows:
    """The records of one log; `all` is written back."""

    all: Any
    sidecar: dict[str, Any]

    def of(self, **columns: int) -> Any:
        """Return a mask of the rows that have all these values."""
        found = np.ones(len(self.all), bool)
        for name, value in columns.items():
            found &= self.all[name] == value
        return found

    def places(self, **columns: int) -> Any:
        """Return the indices of the rows that have all these values."""
        return np.flatnonzero(self.of(**columns))

    def drop(self, mask: Any) -> None:
        self.all = self.all[~mask]

    def insert(self, place: int, rows: Any) -> None:
        self.all = np.concatenate([self.all[:place], np.atleast_1d(rows), self.all[place:]])


@dataclass(frozen=True)
class Forgery:
    """One row of the table.

    Attributes:
        outcome: the outcome of both checkers that read the folder.
        says: the expected violation, or a piece of the doubt or refusal.
        online: the expected count of the online checker; "" if undetectable online.
        blind: the input that the online checker lacks, in a word.
        gated: whether the run has a subscription that started at a closed gate.
        sealed: whether the forger makes a new seal.
    """

    name: str
    change: Callable[[RunFolder], None]
    outcome: Outcome
    says: str
    online: str = ""
    blind: str = ""
    gated: bool = False
    sealed: bool = True


FORGERIES: dict[str, Forgery] = {}


def _forgery(
    outcome: Outcome, says: str, *, online: str = "", blind: str = "", gated: bool = False,
    sealed: bool = True,
) -> Callable[[Callable[[RunFolder], None]], Callable[[RunFolder], None]]:  # fmt: skip
    assert bool(online) != bool(blind)

    def register(change: Callable[[RunFolder], None]) -> Callable[[RunFolder], None]:
        name = change.__name__
        FORGERIES[name] = Forgery(name, change, outcome, says, online, blind, gated, sealed)
        return change

    return register


def write_honest_run(folder: Path, run_id: str, *, gated: bool = False) -> Path:
    """Write a small VALID run; a gated run has a subscription that started late at a gate."""
    run = write_demo_run(folder, Scenario(run_id=run_id, bars=2, **DURATION))
    if gated:
        _close_gate(RunFolder(run))
        seal(run)
    return run


def write_ordered_run(folder: Path, run_id: str) -> Path:
    """Write an honest, complete run with a workload that requires a total order."""
    run = write_honest_run(folder, run_id)
    _put_in_order(RunFolder(run))
    seal(run)
    return run


def _put_in_order(run: RunFolder) -> None:
    """Sort the deliveries of each subscription by sequence number, then by publisher."""
    run.replace("spec/workload.toml", 'order = "publisher"', 'order = "total"')
    for process in (NEAR, FAR):
        with run.records(process, "deliveries") as rows:
            for subscription in sorted({*rows.all["subscription"].tolist()}):
                places = rows.places(subscription=subscription)
                part = rows.all[places]
                part = part[np.lexsort((part["publisher"], part["sequence"]))]
                part["received_ns"] = np.maximum.accumulate(part["received_ns"])
                rows.all[places] = part
            rows.all = rows.all[np.argsort(rows.all["received_ns"], kind="stable")]


def write_forged_run(folder: Path, run_id: str, forgery: Forgery) -> Path:
    """Write an honest run and apply a forgery."""
    run = write_honest_run(folder, run_id, gated=forgery.gated)
    forgery.change(RunFolder(run))
    if forgery.sealed:
        seal(run)
    return run


def _close_gate(run: RunFolder) -> None:
    """Cut s1 from b1 and p1 while it subscribes, and announce the withheld publications."""
    cut = {
        "verb": "cut", "params": {}, "t_planned_ns": ORIGIN_NS - 5 * SECOND,
        "t_requested_ns": ORIGIN_NS - 5 * SECOND, "t_applied_ns": ORIGIN_NS - 4 * SECOND,
        "t_observed_ns": ORIGIN_NS - 4 * SECOND, "t_healed_ns": ORIGIN_NS, "state": "healed",
    }  # fmt: skip
    names = ("fault_id", "step", "verb", "target", "params")
    for link in ("s1-b1", "s1-p1"):
        row = {**cut, "fault_id": f"cut-{link}", "step": f"cut-{link}", "target": link}
        with run.lines("faults/faults.jsonl") as rows:
            rows.append(row)
        with run.lines("faults/plan.jsonl") as rows:
            rows.append({name: row[name] for name in names})
    _withhold(run, WITHHELD)


def _withhold(run: RunFolder, last: int) -> None:
    """Withhold the first publications of each source from s1, with notices."""
    with run.records(NEAR, "deliveries") as rows:
        rows.sidecar["tables"]["partitions"] = [
            {"detector": "s1", "incarnation": 1, "number": 1, "nodes": ["b1", "p1"]}
        ]
        rows.drop(rows.of(subscription=S1) & (rows.all["sequence"] <= last))
        told_ns = int(rows.all["received_ns"].min()) - 1000
        notices = np.zeros(4, RECORDS["deliveries"])
        notices["sequence"], notices["digest"], notices["kind"] = 1, last, NOTICE
        notices["publisher"], notices["received_ns"] = range(4), told_ns
        notices["layer"], notices["subscription"] = 1, S1
        rows.insert(0, notices)


# --- What was delivered ---------------------------------------------------------------------


@_forgery("violation", "missing", online="missing")
def one_delivery_is_left_out(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        rows.drop(rows.of(subscription=S1, publisher=0, sequence=20))


@_forgery("violation", "fence_missing", online="fences awaited")
def the_end_of_a_log_is_cut_off(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        rows.drop(rows.of(subscription=S1) & (rows.all["sequence"] > 25))


@_forgery("violation", "missing", online="fences awaited")
def a_source_reaches_a_subscription_never(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        rows.drop(rows.of(subscription=S1, publisher=1))


@_forgery("violation", "duplicate", online="duplicate")
def one_comes_twice(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        (place,) = rows.places(subscription=S1, publisher=0, sequence=20)
        rows.insert(place + 1, rows.all[place])


@_forgery("violation", "reordered", online="reordered")
def two_are_swapped(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        a, b = rows.places(subscription=S1, publisher=0)[20:22]
        for column in ("sequence", "digest"):
            rows.all[column][[a, b]] = rows.all[column][[b, a]]


@_forgery("violation", "order_differs", online="order_differs")
def two_of_two_publishers_are_swapped_in_a_total_order(run: RunFolder) -> None:
    _put_in_order(run)
    with run.records(NEAR, "deliveries") as rows:
        places = rows.places(subscription=S1)
        a, b = next(
            (a, b)
            for a, b in pairwise(places[20:])
            if rows.all["sequence"][a] == rows.all["sequence"][b]
        )
        for column in ("sequence", "digest", "publisher"):
            rows.all[column][[a, b]] = rows.all[column][[b, a]]


@_forgery("violation", "corrupted", online="corrupted")
def one_holds_something_else(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        rows.all["digest"][rows.of(subscription=S1, publisher=0, sequence=20)] ^= 1


@_forgery("violation", "phantom", online="phantom")
def one_was_never_sent(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        row = rows.all[-1:].copy()
        row["sequence"] = LAST + 7
        rows.insert(len(rows.all), row)


@_forgery("violation", "phantom", online="phantom")
def one_is_of_a_source_that_nobody_knows(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        rows.sidecar["tables"]["publishers"].append("b2/77")
        row = rows.all[-1:].copy()
        row["publisher"] = 4
        rows.insert(len(rows.all), row)


@_forgery("violation", "wrong_match", online="wrong_match")
def one_comes_to_whom_it_does_not_concern(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        of_s2 = {*rows.all["sequence"][rows.of(subscription=S2, publisher=0)].tolist()}
        (place,) = (
            place
            for place in rows.places(subscription=S1, publisher=0)
            if rows.all["sequence"][place] == min({*range(2, LAST)} - of_s2)
        )
        row = rows.all[place : place + 1].copy()
        row["subscription"] = S2
        rows.insert(place + 1, row)


@_forgery("violation", "gap_not_permitted", online="missing")
def a_loss_is_declared_a_gap(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        rows.all["kind"][rows.of(subscription=S1, publisher=0, sequence=20)] = 2


@_forgery("violation", "missing", online="missing")
def one_came_on_the_wire_only(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        rows.all["layer"][rows.of(subscription=S1, publisher=0, sequence=20)] = 0


@_forgery("doubt", "are logged as fences and are none", blind="logged kinds")
def a_publication_is_logged_as_a_fence(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        rows.all["kind"][rows.of(subscription=S1, publisher=0, sequence=20)] = 1


# --- When it was delivered ------------------------------------------------------------------


@_forgery("doubt", "received before they were sent", blind="clocks")
def deliveries_come_before_they_were_sent(run: RunFolder) -> None:
    with run.records(FAR, "deliveries") as rows:
        rows.all["received_ns"] -= 5 * SECOND


@_forgery("doubt", "moved back by", blind="clocks")
def the_clock_of_a_subscriber_jumps_back(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        rows.all["received_ns"][: len(rows.all) // 2] += 20 * SECOND


@_forgery("doubt", "moved back by", blind="clocks")
def the_clock_of_the_publishers_jumps_back(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "publications") as rows:
        rows.all["sent_ns"][len(rows.all) // 2 :] -= 20 * SECOND


@_forgery("doubt", "have no time", blind="clocks")
def deliveries_have_no_time(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        rows.all["received_ns"][-3:] = 0


# --- Subscribers' logs ----------------------------------------------------------------------


@_forgery("doubt", "was not closed", online="fences awaited")
def a_torn_log_hides_a_loss(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        rows.drop(rows.all["sequence"] > 25)
        rows.sidecar["closed"] = False


@_forgery("doubt", "is of run", online="fences awaited")
def the_log_is_of_another_run(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        rows.sidecar["run_id"] = "another"


@_forgery("doubt", "there is no log of", online="fences awaited")
def a_process_is_forgotten(run: RunFolder) -> None:
    shutil.rmtree(run.path(f"raw/{NEAR}"))


@_forgery("doubt", "was never accepted", blind="subscriptions' log")
def a_subscription_never_started(run: RunFolder) -> None:
    with run.subscription() as line:
        line["t_accepted_ns"] = None


@_forgery("doubt", "after p1/0 had sent its opening fence", blind="subscriptions' log")
def a_subscription_started_late(run: RunFolder) -> None:
    with run.subscription() as line:
        line["t_accepted_ns"] = ORIGIN_NS + SECOND


@_forgery("doubt", "requested \"symbol = 'NONE'\"", online="missing")
def the_logged_predicate_asks_for_nothing(run: RunFolder) -> None:
    with run.subscription() as line:
        line["predicate"] = "symbol = 'NONE'"
    with run.records(NEAR, "deliveries") as rows:
        rows.drop(rows.of(subscription=S1, kind=0))


@_forgery("doubt", "was at b1; the workload has s1", blind="subscriptions' log")
def a_subscription_was_elsewhere(run: RunFolder) -> None:
    with run.subscription() as line:
        line["broker"] = "b1"


@_forgery("doubt", "is not in the workload", blind="subscriptions' log")
def a_subscription_is_of_nobody(run: RunFolder) -> None:
    with run.subscription() as line:
        line["subscriber"] = "s1-sub-2"


@_forgery("doubt", "two logs are of subscription s1-sub-1/1", blind="subscriptions' log")
def a_subscription_is_logged_twice(run: RunFolder) -> None:
    with run.lines(f"raw/{NEAR}/subscriptions.jsonl") as lines:
        lines.append(lines[0])


@_forgery("doubt", "the workload requires", online="missing")
def the_workload_and_the_log_ask_for_nothing(run: RunFolder) -> None:
    old = 'filter = "price <= 250 or volume > 9000"'
    run.replace("spec/workload.toml", old, "filter = \"symbol = 'NONE'\"")
    with run.lines(f"raw/{NEAR}/subscriptions.jsonl") as lines:
        lines[1]["predicate"] = "symbol = 'NONE'"
    with run.records(NEAR, "deliveries") as rows:
        rows.drop(rows.of(subscription=S2, kind=0))


# --- Publishers' logs -----------------------------------------------------------------------


def _forget(run: RunFolder, sequence: int, *layouts: str) -> None:
    """Remove a publication of the first publisher from these logs and from all deliveries."""
    columns = {"publications": "sequence", "acks": "first"}
    for layout in layouts:
        with run.records(PUBLISHERS, layout) as rows:
            rows.drop(rows.of(publisher=0, **{columns[layout]: sequence}))
    for process in (NEAR, FAR):
        with run.records(process, "deliveries") as rows:
            rows.drop(rows.of(publisher=0, sequence=sequence))


@_forgery("doubt", "are not in its publisher's log", online="missing")
def an_acknowledged_number_is_not_in_the_log(run: RunFolder) -> None:
    _forget(run, 20, "publications")


@_forgery("doubt", "are not in its publisher's log", online="missing")
def a_number_is_in_no_log_at_all(run: RunFolder) -> None:
    _forget(run, 20, "publications", "acks")


@_forgery("doubt", "not acknowledged and not delivered", online="missing")
def one_was_neither_answered_nor_received(run: RunFolder) -> None:
    _forget(run, 20, "acks")


@_forgery("doubt", "not acknowledged and not delivered", online="missing")
def one_was_refused_and_not_received(run: RunFolder) -> None:
    _forget(run, 20)
    with run.records(PUBLISHERS, "acks") as rows:
        rows.all["outcome"][rows.of(publisher=0, first=20)] = 2


@_forgery("doubt", "are not in its publisher's log", blind="publishers' logs")
def the_last_number_was_only_acknowledged(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "acks") as rows:
        rows.all["last"][rows.of(publisher=0, last=LAST)] = LAST + 1


@_forgery("violation", "phantom", blind="publishers' logs")
def what_was_delivered_is_not_in_the_log(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "publications") as rows:
        rows.drop(rows.of(publisher=0, sequence=20))


@_forgery("violation", "sequence_reuse", blind="publishers' logs")
def a_number_is_used_twice(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "publications") as rows:
        (place,) = rows.places(publisher=0, sequence=20)
        rows.insert(place, rows.all[place])


@_forgery("violation", "rejected", blind="publishers' logs")
def one_that_was_refused_is_delivered(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "acks") as rows:
        rows.all["outcome"][rows.of(publisher=0, first=20)] = 2


@_forgery("doubt", "published other content", blind="publishers' logs")
def something_else_was_published(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "publications") as rows:
        rows.all["attribute_set"][rows.of(publisher=0, sequence=20)] ^= 1


@_forgery("doubt", "other attribute sets", blind="publishers' logs")
def attributes_are_not_those_of_the_seed(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "publications") as rows:
        rows.sidecar["tables"]["attribute_sets"][3]["price"] += 1


@_forgery("doubt", "other attribute sets", blind="publishers' logs")
def attributes_are_of_another_kind(run: RunFolder) -> None:
    """1.0 equals 1 in Python, but is a different value on the wire."""
    with run.records(PUBLISHERS, "publications") as rows:
        attributes = rows.sidecar["tables"]["attribute_sets"][3]
        attributes["price"] = float(attributes["price"])


@_forgery("doubt", "before they were reserved", blind="publishers' logs")
def numbers_were_never_reserved(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "intents") as rows:
        rows.all["last"] = 20


@_forgery("doubt", "disagree on numbers with two answers", blind="publishers' logs")
def an_acknowledgement_came_twice(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "acks") as rows:
        rows.insert(5, rows.all[4])


@_forgery("doubt", "disagree on answers before their publication", blind="publishers' logs")
def acknowledgements_came_before_their_publications(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "acks") as rows:
        rows.all["acked_ns"] -= SECOND // 10


@_forgery("doubt", "has no opening and closing fence", online="fences awaited")
def there_is_no_closing_fence(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "acks") as rows:
        rows.drop(rows.of(publisher=0, last=LAST))
    for process in (NEAR, FAR):
        with run.records(process, "deliveries") as rows:
            rows.drop(rows.of(publisher=0, sequence=LAST))


@_forgery("doubt", "there is no log of publisher", blind="publishers' logs")
def the_publishers_were_killed(run: RunFolder) -> None:
    """The names of a log are written when it is closed."""
    for layout in ("publications", "acks", "intents"):
        with run.records(PUBLISHERS, layout) as rows:
            rows.sidecar["tables"], rows.sidecar["closed"] = {}, False


@_forgery("doubt", "there is no log of publisher", blind="publishers' logs")
def a_publisher_is_forgotten(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "publications") as rows:
        rows.sidecar["tables"]["publisher_names"]["p1/3"] = "nobody"


@_forgery("doubt", "the workload has p1", online="phantom")
def a_publisher_was_elsewhere(run: RunFolder) -> None:
    for process, layout in (
        *((PUBLISHERS, layout) for layout in ("publications", "acks", "intents")),
        *((process, "deliveries") for process in (NEAR, FAR)),
    ):
        with run.records(process, layout) as rows:
            tables = rows.sidecar["tables"]
            tables["publishers"][3] = "s1/3"
            if "publisher_names" in tables:
                tables["publisher_names"]["s1/3"] = tables["publisher_names"].pop("p1/3")


@_forgery("doubt", "was not closed", blind="publishers' logs")
def the_log_of_the_publishers_was_not_closed(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "publications") as rows:
        rows.sidecar["closed"] = False


# --- Faults ---------------------------------------------------------------------------------


@_forgery("doubt", "was planned and is not in the fault log", blind="faults")
def a_fault_is_not_logged(run: RunFolder) -> None:
    with run.lines("faults/faults.jsonl") as rows:
        del rows[2]


@_forgery("doubt", "was never planned", blind="faults")
def a_fault_is_made_up(run: RunFolder) -> None:
    with run.lines("faults/faults.jsonl") as rows:
        rows.append({**rows[0], "fault_id": "excuse", "target": "s1"})


@_forgery("doubt", "is not what was planned", blind="faults")
def another_broker_was_struck_than_planned(run: RunFolder) -> None:
    with run.fault(2) as fault:
        fault["target"] = "b2"


@_forgery("doubt", "was not applied", blind="faults")
def a_fault_was_not_applied(run: RunFolder) -> None:
    with run.fault(2) as fault:
        fault["t_applied_ns"] = None


@_forgery("doubt", "was not observed", blind="faults")
def a_fault_was_not_observed(run: RunFolder) -> None:
    with run.fault(1) as fault:
        fault["t_observed_ns"] = None


@_forgery("doubt", "ended or was observed before it was applied", blind="faults")
def a_fault_was_over_before_it_began(run: RunFolder) -> None:
    with run.fault(1) as fault:
        fault["t_healed_ns"] = fault["t_applied_ns"] - SECOND


@_forgery("doubt", "reports that it absorbed nothing", blind="faults")
def an_absorb_absorbed_nothing(run: RunFolder) -> None:
    with run.fault(0) as fault:
        fault["absorbed_msgs"] = 0


@_forgery("doubt", "does not report what it absorbed", blind="faults")
def an_absorb_does_not_say_what_it_absorbed(run: RunFolder) -> None:
    with run.fault(0) as fault:
        fault["absorbed_msgs"] = None


@_forgery("doubt", ") failed: ", blind="faults")
def a_fault_went_wrong(run: RunFolder) -> None:
    with run.fault(0) as fault:
        fault["state"] = "failed"


@_forgery("doubt", "nothing was at risk", blind="faults")
def nothing_was_put_to_the_test(run: RunFolder) -> None:
    shutil.rmtree(run.path("faults"))


@_forgery("doubt", "its fault log is empty", blind="faults")
def the_schedule_left_no_trace(run: RunFolder) -> None:
    run.path("spec/faults.toml").write_text("")
    shutil.rmtree(run.path("faults"))


@_forgery("doubt", "only 112 publications were absorbed", blind="faults")
def the_schedule_asked_for_more(run: RunFolder) -> None:
    run.path("spec/faults.toml").write_text("[exercised]\nabsorbed_msgs_min = 500\n")


@_forgery("doubt", "nothing was at risk for the subscribers at s4", blind="faults")
def the_faults_spared_whom_they_should_strike(run: RunFolder) -> None:
    run.path("spec/faults.toml").write_text('[exercised]\nsubscribers_on_path = ["s1", "s4"]\n')


# --- What the run says of itself ------------------------------------------------------------


@_forgery("doubt", "the run is partial", blind="manifest")
def the_run_did_not_end(run: RunFolder) -> None:
    with run.document("manifest.json") as manifest:
        manifest["state"] = "partial"


@_forgery("doubt", "could not hold their rate", blind="manifest")
def the_load_was_less_than_asked_for(run: RunFolder) -> None:
    with run.document("manifest.json") as manifest:
        manifest["loadgen_saturated"] = True


@_forgery("doubt", "never reached its measure phase", blind="manifest")
def nothing_was_measured(run: RunFolder) -> None:
    with run.document("manifest.json") as manifest:
        del manifest["origin_ns"]


@_forgery("doubt", "closing fence before the measurement ended", blind="manifest")
def the_measurement_went_on_without_publishers(run: RunFolder) -> None:
    with run.document("manifest.json") as manifest:
        manifest["phases"][2]["t1_ns"] += 60 * SECOND


@_forgery("doubt", "the manifest has seed 12", blind="manifest")
def the_manifest_is_of_another_seed(run: RunFolder) -> None:
    with run.document("manifest.json") as manifest:
        manifest["seed"] = 12


@_forgery("doubt", "the manifest has topology 'other'", blind="manifest")
def the_manifest_is_of_another_topology(run: RunFolder) -> None:
    with run.document("manifest.json") as manifest:
        manifest["topology"] = "other"


@_forgery("doubt", "deliveries were still arriving", online="fences awaited")
def the_drain_ended_while_deliveries_were_arriving(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        rows.drop(rows.all["sequence"] > 25)
    with run.document("manifest.json") as manifest:
        manifest["drain"] = {"ended_by": "bound", "took_s": 300.0, "waiting_for": "24 fences"}


@_forgery("violation", "missing", online="fences awaited")
def the_drain_ended_in_silence_and_deliveries_are_missing(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        rows.drop(rows.all["sequence"] > 25)
    with run.document("manifest.json") as manifest:
        manifest["drain"] = {"ended_by": "silence", "took_s": 30.0, "waiting_for": "24 fences"}


# --- The seal -------------------------------------------------------------------------------


@_forgery("doubt", "has no seal", blind="seal", sealed=False)
def the_seal_is_gone(run: RunFolder) -> None:
    run.path("SHA256SUMS").unlink()


@_forgery("refused", "faults/faults.jsonl has changed", blind="seal", sealed=False)
def a_file_was_changed_after_the_run(run: RunFolder) -> None:
    with run.fault(0) as fault:
        fault["absorbed_msgs"] = 500


@_forgery("refused", "faults/faults.jsonl has changed", blind="seal", sealed=False)
def a_line_was_added_that_no_version_writes(run: RunFolder) -> None:
    with run.lines("faults/faults.jsonl") as rows:
        rows.append({"note": "not by us"})


@_forgery("refused", "None", blind="faults")
def a_line_that_no_version_writes_is_sealed(run: RunFolder) -> None:
    with run.lines("faults/faults.jsonl") as rows:
        rows.append({"note": "not by us"})


@_forgery("refused", "clock.jsonl is", blind="seal", sealed=False)
def a_file_was_added_after_the_run(run: RunFolder) -> None:
    run.path("clock.jsonl").write_text("")


@_forgery("refused", "faults/plan.jsonl is missing", blind="seal", sealed=False)
def a_file_was_removed_after_the_run(run: RunFolder) -> None:
    run.path("faults/plan.jsonl").unlink()


@_forgery("refused", "plan.jsonl is", blind="seal", sealed=False)
def a_link_leads_out_of_the_folder(run: RunFolder) -> None:
    plan = run.path("faults/plan.jsonl")
    plan.rename(run.folder.parent / f"{run.folder.name}.jsonl")
    plan.symlink_to(run.folder.parent / f"{run.folder.name}.jsonl")


@_forgery("refused", "deliveries.rec", blind="sidecars")
def a_sidecar_counts_other_records(run: RunFolder) -> None:
    with run.document(f"raw/{NEAR}/deliveries.rec.json") as sidecar:
        sidecar["rows"] -= 1


@_forgery("refused", "deliveries.rec", blind="sidecars")
def a_log_does_not_have_its_sidecars_sum(run: RunFolder) -> None:
    with run.document(f"raw/{NEAR}/deliveries.rec.json") as sidecar:
        sidecar["blake2b"] = "0" * 128


# --- Gates ----------------------------------------------------------------------------------


@_forgery("violation", "withheld_unjustified", blind="faults", gated=True)
def a_notice_excuses_a_stream_though_the_fault_came_later(run: RunFolder) -> None:
    """The only faults began seconds after the subscription was accepted."""
    for number in (3, 4):
        with run.fault(number) as fault:
            fault["t_applied_ns"] = fault["t_observed_ns"] = ORIGIN_NS - SECOND
    with run.records(NEAR, "deliveries") as rows:
        rows.drop(rows.of(kind=NOTICE))
    _withhold(run, LAST)


@_forgery("violation", "withheld_unjustified", blind="faults", gated=True)
def a_gate_never_opens(run: RunFolder) -> None:
    """The faults ended so early that the overlay had settled when the stream began."""
    for number in (3, 4):
        with run.fault(number) as fault:
            times = {"t_applied_ns": 30, "t_observed_ns": 30, "t_healed_ns": 17}
            fault |= {name: ORIGIN_NS - s * SECOND for name, s in times.items()}
    with run.records(NEAR, "deliveries") as rows:
        rows.drop(rows.of(kind=NOTICE))
    _withhold(run, LAST)


@_forgery("violation", "withheld_unjustified", blind="faults", gated=True)
def a_notice_has_no_reason(run: RunFolder) -> None:
    for name in ("faults", "plan"):
        with run.lines(f"faults/{name}.jsonl") as rows:
            del rows[3:]


@_forgery(
    "doubt",
    "the times of its request and acceptance are unknown",
    blind="subscriptions' log",
    gated=True,
)
def nobody_knows_when_the_gate_was_closed(run: RunFolder) -> None:
    with run.subscription() as line:
        line["t_issued_ns"] = None


@_forgery("violation", "withheld_late", online="withheld_late", gated=True)
def a_loss_is_announced_afterwards(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        (place,) = rows.places(subscription=S1, publisher=0, sequence=25)
        rows.all["kind"][place], rows.all["digest"][place] = NOTICE, 1


@_forgery("violation", "withheld_delivered", online="withheld_delivered", gated=True)
def what_was_announced_comes_all_the_same(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        rows.all["digest"][rows.of(kind=NOTICE, publisher=0)] = WITHHELD + 1


@_forgery("violation", "missing", online="missing", gated=True)
def a_notice_is_shorter_than_what_is_left_out(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        rows.all["digest"][rows.of(kind=NOTICE, publisher=0)] = WITHHELD - 1
