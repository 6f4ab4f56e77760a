"""Tests of honest runs with slow machines and ended processes: no two files contradict."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.protocols.registry import DEFINITIONS
from results.reference.history import PublisherLog
from results.reference.rule import _strangers
from results.tables.logs import _sources
from results.witnesses import RunFolder
from results.witnesses.broker_events import _check_unanswered
from results.witnesses.brokers import _check_events, doubts_about_brokers
from results.witnesses.causality import _check_unknown
from results.witnesses.client_sessions import check_client_fault, check_clients
from results.witnesses.faults import _check_plan, _check_recovery, _check_times
from results.witnesses.figures import _check_lateness
from results.witnesses.folder import ProcessFolder
from results.witnesses.headline import check_headline
from results.witnesses.incarnations import _check_processes, _find_restarts
from results.witnesses.load_seconds import _check_pauses, least_quantile
from results.witnesses.manifest import _check_journal, _check_roles
from results.witnesses.online import findings_online
from results.witnesses.process_ends import _about_files
from results.witnesses.publication_counts import check_totals
from results.witnesses.rows import LaneRows, LoggedDelivery, SourceRows
from results.witnesses.sessions import _check_beginnings, _check_between, _check_counters
from results.witnesses.shapes import doubts_about_shapes
from results.witnesses.summary import _check_files, _check_positions, _check_redeliveries

SECOND = 10**9
CLOCK: Any = SimpleNamespace(to_timeline=lambda ns, host: ns, error_ns=lambda one, other: 0)


def seconds(*rows: tuple[int, int, int, int]) -> list[dict[str, int]]:
    """Return statistics: second, offers so far, and both figures of lateness in ms."""
    return [
        {"t_ns": at * SECOND, "offered": n, "late_p99_us": usual * 1000, "late_max_us": most * 1000}
        for at, n, usual, most in rows
    ]


# The measurement begins at second 2.
WARM = (1, 100, 5, 9), (2, 200, 5, 9), (3, 300, 5, 9)
CALM = *WARM, (4, 400, 5, 9), (5, 500, 5, 9), (6, 500, 0, 0)
LATE = *WARM, (5, 500, 900, 950), (6, 600, 900, 950), (7, 600, 0, 0)
IN_WARM_UP = (1, 100, 5, 9), (3, 300, 900, 950), (4, 400, 5, 9), (5, 500, 5, 9)
AT_THE_END = *WARM, (4, 400, 5, 9), (7, 600, 1100, 1100)
FEW_LATE = *WARM, (4, 1200, 5, 9), (5, 2200, 5, 9), (6, 2210, 900, 950)


@pytest.mark.parametrize(
    "rows, least_ms",
    [(CALM, 5), (LATE, 900), (IN_WARM_UP, 0), (AT_THE_END, 5), (FEW_LATE, 5)],
)
def test_a_second_of_the_warm_up_bounds_no_lateness_of_the_measurement(
    rows: Sequence[tuple[int, int, int, int]], least_ms: int
) -> None:
    assert least_quantile(seconds(*rows), 2 * SECOND, "late_p99_us") == least_ms * 1000


@pytest.mark.parametrize("rows, stated_ms, doubts", [
    (CALM, 5, 0), (CALM, 1, 1), (CALM, 900, 1), (LATE, 900, 0), (LATE, 5, 1),
    (IN_WARM_UP, 5, 0), (AT_THE_END, 1100, 0), (AT_THE_END, 3, 1), (FEW_LATE, 5, 0),
])  # fmt: skip
def test_the_lateness_of_a_headline_is_that_of_publications_of_the_measure_phase(
    rows: Sequence[tuple[int, int, int, int]], stated_ms: int, doubts: int
) -> None:
    process: Any = SimpleNamespace(
        is_publisher=True, lines=lambda name: seconds(*rows), place="raw/h/load"
    )
    folder: Any = SimpleNamespace(processes=[process], has_due_times=False)
    headline = {"lateness_p99_us": stated_ms * 1000.0}
    records: Any = SimpleNamespace(lateness_ns={}, whole=frozenset())
    found = [*_check_lateness(folder, headline, (2 * SECOND, 5 * SECOND), records)]
    assert len(found) == doubts


@pytest.mark.parametrize("protocol, lost, received, doubts", [
    ("delta_tree", 0, 20, 0), ("delta_tree", 0, 15, 1), ("delta_tree", 1, 15, 0),
    ("delta_tree", 1, 9, 1), ("delta_tree", 1, 21, 1), ("delta_tree", 1, 14, 1),
    ("best_effort", 1, 14, 0), ("best_effort", 1, 9, 1),
    ("ges_reliable", 0, 10, 0), ("ges_reliable", 0, 15, 0), ("ges_reliable", 0, 9, 1),
])  # fmt: skip
@pytest.mark.parametrize("slowest_us", [300_000, 14_000])
def test_publications_may_be_lost_with_a_session_and_sent_again_to_a_slow_storage(
    protocol: str, lost: int, received: int, doubts: int, slowest_us: int
) -> None:
    if protocol == "ges_reliable" and received > 10 and slowest_us < 100_000:
        doubts = 1
    folder: Any = SimpleNamespace(
        fault_rows=(), rolling_ns=None, session_lines={}, workload={"protocol": protocol},
        overlay_kind=DEFINITIONS[protocol].kind,
        origin_ns=0, processes=(), timeline=CLOCK, brokers=["b"],
    )  # fmt: skip
    counts = {"load-pub": 10}
    headline = SimpleNamespace(acknowledged_us={"max": slowest_us})
    rows: Any = SimpleNamespace(published=counts, acknowledged=counts, headline=headline)
    line = {"t_ns": 1, "sessions_lost": 0, "publications_received": 0}
    if protocol == "ges_reliable":
        line["messages_carried"] = 0
    last = line | {
        "publications_received": received, "publications_forwarded": 10,
        "broker_sessions_lost": lost, "resent_publications": 5,
    }  # fmt: skip
    broker: Any = SimpleNamespace(lines=lambda name: [line, last], host="h", name="b")
    folder.processes = [broker]
    assert len([*check_totals(folder, rows, [broker])]) == doubts


@pytest.mark.parametrize("first_s, silent_s, doubts", [(1, None, 0), (3, None, 1), (3, 2, 0),
                                                        (3, 4, 1)])  # fmt: skip
def test_a_broker_that_its_peers_found_silent_may_begin_its_statistics_late(
    first_s: int, silent_s: int | None, doubts: int
) -> None:
    lost = [] if silent_s is None else [session(silent_s * SECOND, "session_lost", "b1")]
    begun = [{"t_ns": 0, "event": "run_begun"}]
    stats = [{"t_ns": first_s * SECOND}, {"t_ns": (first_s + 1) * SECOND}]

    def process(name: str, events: list[dict[str, Any]]) -> Any:
        files = {"events.jsonl": events, "stats.jsonl": stats}
        return SimpleNamespace(
            name=name, host="h", place=f"raw/h/{name}", is_load=False, lines=files.__getitem__
        )

    broker, peer = process("b1", begun), process("b2", lost)
    folder: Any = SimpleNamespace(
        fault_rows=(), processes=[broker, peer], timeline=CLOCK, document=lambda name: {},
        rolling_ns=None, phase_ns=lambda name: None,
    )  # fmt: skip
    assert len([*_check_beginnings(folder, broker, begun)]) == doubts


def session(at_ns: int, event: str, peer: str) -> dict[str, Any]:
    return {
        "t_ns": at_ns, "event": event, "peer": peer, "session": 7, "opened": True,
        "reason": "silent",
    }  # fmt: skip


@pytest.mark.parametrize("theirs_ns, over_ns, silent_s, doubts", [
    (5 * SECOND, 9 * SECOND, 1, 0), (None, 9 * SECOND, 1, 1),
    (None, 5 * SECOND - 1, 1, 0),  # the peer's run had ended
    (None, 6 * SECOND, 6, 0),  # the peer was stopped until its run ended
    (None, 6 * SECOND, 3, 1),  # the peer was stopped before
])  # fmt: skip
def test_a_session_has_two_ends_if_both_brokers_had_time_to_log_it(
    theirs_ns: int | None, over_ns: int, silent_s: int, doubts: int
) -> None:
    begun = {"t_ns": 0, "event": "run_begun"}
    there = [] if theirs_ns is None else [session(theirs_ns, "session_established", "a")]

    def process(name: str, events: list[dict[str, Any]], stopped_s: int) -> Any:
        stats = [{"t_ns": at * SECOND} for at in (0, 1, 1 + stopped_s)]
        files = {"events.jsonl": events, "stats.jsonl": stats}
        return SimpleNamespace(
            name=name, host="h", place=f"raw/h/{name}", is_load=False, lines=files.__getitem__
        )

    ended = {"event": "run_ended"}
    one = process(
        "a", [begun, session(5 * SECOND, "session_established", "b"), {**ended, "t_ns": 10**10}], 1
    )
    other = process("b", [begun, *there, {**ended, "t_ns": over_ns}], silent_s)
    folder: Any = SimpleNamespace(
        fault_rows=(), brokers=("a", "b"), processes=[one, other], topology={}, timeline=CLOCK,
        document=lambda name: {}, phase_ns=lambda name: None,
    )  # fmt: skip
    assert len([*_check_between(folder, one, other)]) == doubts


CONSUMING = {
    "protocol": "delta_tree",
    "subscribers": [{"at": "c1"}, {"at": "c1", "acknowledge": "auto", "own_process": True}],
}


@pytest.mark.parametrize("n, doubts", [(7, 0), (12, 1), (6, 1)])
def test_deliveries_to_consumers_have_no_positions(tmp_path: Path, n: int, doubts: int) -> None:
    lines = "".join(
        json.dumps({"sub_id": f"c1-sub-{k}/1", "subscriber": f"c1-sub-{k}"}) + "\n" for k in (1, 2)
    )
    positions = json.dumps({"rows": n})
    files = {"load/subscriptions.jsonl": lines, "load/positions.rec.json": positions}
    folder = run_folder(tmp_path, "complete", files)
    folder._read["spec/workload.toml"] = CONSUMING
    process = ProcessFolder(folder, "h", "load", tmp_path / "raw" / "h" / "load")
    lanes = {
        ("c1-sub-1/1", "c1/0", 1): LaneRows(data=5, fences=2),
        ("c1-sub-2/1", "c1/0", 1): LaneRows(data=3, fences=2, again=1),
    }
    rows: Any = SimpleNamespace(
        misplaced={}, delivered={"raw/h/load": 13}, whole={"raw/h/load"}, lanes=lanes
    )
    assert len([*_check_positions(folder, process, rows)]) == doubts


@pytest.mark.parametrize("client, n_sessions, doubts", [
    ("c1-sub-1", 2, 1), ("c1-sub-2", 1, 1), ("c1-sub-2", 2, 0),
])  # fmt: skip
def test_only_a_consumer_that_lost_a_session_is_given_deliveries_again(
    tmp_path: Path, client: str, n_sessions: int, doubts: int
) -> None:
    folder = run_folder(tmp_path, "complete", {})
    folder._read["spec/workload.toml"] = CONSUMING
    changes = ("up", "down") * n_sessions
    lines = tuple((at, event, "c1") for at, event in enumerate(changes))
    folder.__dict__["session_lines"] = {client: lines}
    lanes = {(f"{client}/1", "c1/0", 1): LaneRows(again=1)}
    rows: Any = SimpleNamespace(lanes=lanes, applications={})
    assert len([*_check_redeliveries(folder, rows)]) == doubts


@pytest.mark.parametrize("protocol", ["delta_tree", "durable"])
def test_a_client_with_one_session_is_given_no_delivery_again(
    tmp_path: Path, protocol: str
) -> None:
    folder = run_folder(tmp_path, "complete", {})
    folder._read["spec/workload.toml"] = {**CONSUMING, "protocol": protocol}
    folder.__dict__["session_lines"] = {"c1-sub-1": ((0, "up", "c1"), (9, "down", "c1"))}
    lanes = {("c1-sub-1/1", "c1/0", 1): LaneRows(again=1)}
    rows: Any = SimpleNamespace(lanes=lanes, applications={})
    assert len([*_check_redeliveries(folder, rows)]) == 1


@pytest.mark.parametrize("first_ns, doubts", [(2, 1), (4, 0)])
def test_a_delivery_is_given_again_only_behind_a_return(
    tmp_path: Path, first_ns: int, doubts: int
) -> None:
    folder = run_folder(tmp_path, "complete", {})
    folder._read["spec/workload.toml"] = CONSUMING
    lines = ((0, "up", "c1"), (SECOND, "down", "c1"), (3 * SECOND, "up", "c1"))
    folder.__dict__["session_lines"] = {"c1-sub-2": lines}
    log = [LoggedDelivery(0, "c1/0", 1, 7, True, first_ns * SECOND)]
    rows: Any = SimpleNamespace(lanes={}, applications={("raw/h/load", "c1-sub-2/1"): log})
    assert len([*_check_redeliveries(folder, rows)]) == doubts


# --- Runs that broke off --------------------------------------------------------------------


def run_folder(path: Path, state: str, files: dict[str, str], **manifest: Any) -> RunFolder:
    """Return a run folder with these files of processes; an empty text stands for a folder."""
    for name, text in files.items():
        file = path / "raw" / "h" / name
        (file.parent if text else file).mkdir(parents=True, exist_ok=True)
        if text:
            file.write_text(text)
    folder = RunFolder(path, CLOCK)
    schema = "pubsubctl/manifest/6"
    folder._read["manifest.json"] = {"state": state, "schema": schema, **manifest}
    folder._read["spec/topology.toml"] = {"brokers": ["c1"]}
    return folder


@pytest.mark.parametrize("state, doubts", [("partial", 0), ("complete", 3)])
def test_a_broken_off_run_has_no_files_of_processes_whose_agent_is_gone(
    tmp_path: Path, state: str, doubts: int
) -> None:
    roles = {"c1": {"role": "broker", "host": "h"}, "load-pub": {"role": "publisher", "host": "h"}}
    folder = run_folder(tmp_path, state, {"c1": "", "load-pub": ""}, roles=roles)
    assert len([*_check_roles(folder), *doubts_about_brokers(folder)]) == doubts


@pytest.mark.parametrize("state, exit_state, found", [
    ("partial", "exited", ["ended in the middle of the run (SIGKILL)"]),
    ("partial", "stopped", ["online.json is missing"]),
    ("complete", "exited", ["online.json is missing"]),
])  # fmt: skip
def test_a_load_generator_that_was_killed_is_named_instead_of_its_missing_files(
    tmp_path: Path, state: str, exit_state: str, found: list[str]
) -> None:
    files = dict.fromkeys(("deliveries.rec", "sessions.jsonl", "stats.jsonl"), "{}\n")
    files |= {"exit.json": f'{{"state": "{exit_state}", "exit_signal": 9}}'}
    files |= {"subscriptions.jsonl": "{}\n"}
    online = {"deliveries": 0}
    folder = run_folder(
        tmp_path, state, {f"load-sub/{name}": text for name, text in files.items()},
        headline={"online": online},
    )  # fmt: skip
    process = ProcessFolder(folder, "h", "load-sub", tmp_path / "raw" / "h" / "load-sub")
    doubts = [*_check_files(folder, process)]
    assert [words in each for words, each in zip(found, doubts, strict=True)] == [True] * len(found)
    counts: Any = SimpleNamespace(headline=None)
    assert [*check_headline(folder, counts)] == []


@pytest.mark.parametrize("state, is_collected, n_doubts", [
    ("partial", True, 0), ("complete", True, 1), ("partial", False, 0), ("complete", False, 2),
])  # fmt: skip
def test_a_load_generator_that_was_killed_or_not_fetched_has_no_end_of_its_sessions(
    tmp_path: Path, state: str, n_doubts: int, *, is_collected: bool
) -> None:
    up = '{"t_ns": 1, "client": "c1-pub-1", "broker": "c1", "event": "up"}\n'
    files = {
        "load-pub/exit.json": '{"state": "exited"}', "load-pub/publications.rec": " ",
        "load-pub/sessions.jsonl": up,
    } if is_collected else {"load-pub": ""}  # fmt: skip
    files["c1/events.jsonl"] = (
        '{"t_ns": 1, "event": "session_established", "peer": "c1-pub-1.x", "session": 1}\n'
        '{"t_ns": 9000000000, "event": "session_lost", "peer": "c1-pub-1.x", "session": 1}\n'
    )
    online = {"deliveries": 0 if is_collected else 7}
    folder = run_folder(tmp_path, state, files, run_id="r-x", headline={"online": online})
    folder._read["spec/workload.toml"] = {"publishers": [{"at": "c1"}]}
    broker = ProcessFolder(folder, "h", "c1", tmp_path / "raw" / "h" / "c1")
    assert len([*check_clients(folder, broker)]) == n_doubts
    load = ProcessFolder(folder, "h", "load-pub", tmp_path / "raw" / "h" / "load-pub")
    if not is_collected:
        counts: Any = SimpleNamespace(headline=None)
        closed = [*_about_files(folder, load, {"stats.jsonl": "0"})]
        assert len([*check_headline(folder, counts), *closed]) == n_doubts


@pytest.mark.parametrize("state, phases, is_doubted", [
    ("partial", ["warmup"], False), ("partial", ["warmup", "measure"], True),
    ("complete", ["warmup"], True),
])  # fmt: skip
def test_a_run_that_ended_in_the_warm_up_had_an_origin_already(
    tmp_path: Path, state: str, phases: list[str], *, is_doubted: bool
) -> None:
    stated = [{"phase": name, "t0_ns": 5, "t1_ns": None} for name in phases]
    folder = run_folder(tmp_path, state, {}, origin_ns=7, phases=stated)
    folder._read["log.jsonl"] = [{"what": "phase", "phase": name, "at_ns": 5} for name in phases]
    assert any("origin_ns" in each for each in _check_journal(folder)) == is_doubted


def test_the_journal_may_say_that_clocks_were_not_compared_after_the_load(tmp_path: Path) -> None:
    (tmp_path / "spec").mkdir()
    (tmp_path / "spec" / "cli.json").write_text("{}")
    folder = run_folder(tmp_path, "partial", {})
    line = {"utc": "", "t_ns": 1, "what": "clocks_not_sampled", "reason": "no agent answers"}
    folder._read["log.jsonl"] = [line]
    assert not [each for each in doubts_about_shapes(folder) if "log.jsonl" in each]


@pytest.mark.parametrize("closed, doubts", [(False, 0), (True, 1)])
def test_a_log_that_was_not_closed_names_no_attribute_sets(doubts: int, *, closed: bool) -> None:
    file = SimpleNamespace(foreign_run="", tables={}, is_whole=False, closed=closed)
    process: Any = SimpleNamespace(host="h", name="load", records={"publications": file})
    content = SimpleNamespace(publishers={}, fence_set=0, attributes=lambda number: {})
    run: Any = SimpleNamespace(content=content)
    found: list[str] = []
    assert [*_sources([process], run, found)] == []
    assert len(found) == doubts


def test_what_is_missing_is_open_without_the_fences_of_its_source(tmp_path: Path) -> None:
    """A run that waited for its opening fences in vain."""
    lane = {"subscription": "s", "publisher": "c1/0", "incarnation": 1, "fence_missing": 4}
    online = {"totals": {}, "lanes": [lane]}
    folder = run_folder(tmp_path, "aborted", {"load/online.json": json.dumps(online)})
    for fences, found in (((1,), {}), ((1, 9), {"fence_missing": 4})):
        sources = {("c1/0", 1): SourceRows(9, fences, 0, 0)}
        rows: Any = SimpleNamespace(sources=sources, lanes={}, published={}, acknowledged={})
        assert findings_online(folder, rows) == found


@pytest.mark.parametrize("logged, closed, n", [
    (("p1", "p2"), True, 1), (("p1", "p2"), False, 0), (("p1",), True, 0), ((), True, 0),
])  # fmt: skip
def test_a_publisher_without_a_log_may_have_sent_everything(
    logged: tuple[str, ...], n: int, *, closed: bool
) -> None:
    """Its load generator was killed. A delivery of a source that no log has proves nothing."""
    logs = [PublisherLog(f"b/{name}", name, (), closed=closed) for name in logged]
    content = SimpleNamespace(publishers=dict.fromkeys(("p1", "p2")))
    history: Any = SimpleNamespace(content=content, publishers=logs)
    row = SimpleNamespace(source="b/7", key=(1, 1))
    subscription: Any = SimpleNamespace(subscription="s", delivered=[row])
    assert len([*_strangers(history, subscription)]) == n


# --- A broker that is killed again before its restart was observed ----------------------------


def test_a_failed_restart_ends_no_kill() -> None:
    def row(verb: str, at: int, **stages: Any) -> dict[str, Any]:
        name = {"fault_id": f"{verb}{at}", "verb": verb, "target": "c1", "t_applied_ns": at}
        return {**name, **{f"t_{stage}_ns": ns for stage, ns in stages.items()}}

    kill = row("kill", 1, heal_requested=6, healed=7, recovered=9) | {"healed_by": "schedule"}
    first = row("restart", 2, requested=1) | {"state": "unknown"}
    second = row("restart", 7, requested=6, recovered=9) | {"state": "recovered"}
    folder: Any = SimpleNamespace(
        fault_rows=[kill, first, second], is_simulated=False, is_witnessed=True, is_foreign=False,
        manifest={}, timeline=CLOCK,
    )  # fmt: skip
    assert [*_check_recovery(folder, kill)] == []
    first["state"] = "recovered"
    assert len([*_check_recovery(folder, kill)]) == 3


@pytest.mark.parametrize("seen_pid, incarnation", [(61, 2), (64, None)])
def test_the_incarnation_of_a_later_process_is_not_that_of_the_first(
    seen_pid: int, incarnation: int | None
) -> None:
    about = {"fault_id": "r1"}
    lines = [
        {**about, "stage": "applied", "evidence": {"pid": 61}},
        {**about, "stage": "observed", "evidence": {"pid": seen_pid, "incarnation": 2}},
    ]
    row = {**about, "verb": "restart", "target": "c1", "t_requested_ns": 5}
    folder: Any = SimpleNamespace(
        fault_rows=[row], origin_ns=1, document=lambda name: {}, lines=lambda name: lines
    )
    assert _find_restarts(folder, "c1") == [(4, incarnation, "r1")]


@pytest.mark.parametrize("seen_pid, doubts", [(61, 0), (64, 0), (7, 1)])
def test_a_restart_is_observed_as_a_process_that_a_restart_started(
    seen_pid: int, doubts: int
) -> None:
    lines = [
        {"fault_id": fault, "verb": "restart", "target": "c1", "stage": stage,
         "evidence": {"pid": pid}}
        for fault, stage, pid in (
            ("r1", "applied", 61), ("r2", "applied", 64), ("r1", "observed", seen_pid),
            ("r2", "observed", 64),
        )
    ]  # fmt: skip
    folder: Any = SimpleNamespace(lines=lambda name: lines)
    assert len([*_check_processes(folder, "c1")]) == doubts


@pytest.mark.parametrize("verb, healed_ns, doubts", [
    ("client-crash", 21, 0), ("client-crash", 22, 1), ("client-disconnect", 21, 1),
])  # fmt: skip
def test_a_client_may_be_back_before_its_last_kill_was_due(
    verb: str, healed_ns: int, doubts: int
) -> None:
    row = {
        "fault_id": "f", "verb": verb, "target": "c1-sub-1", "t_requested_ns": SECOND,
        "t_observed_ns": 2 * SECOND, "t_healed_ns": healed_ns * SECOND,
        "t_recovered_ns": 21 * SECOND,
    }  # fmt: skip
    lines = [(0, "up", "c1"), (2 * SECOND, "down", "c1"), (13 * SECOND, "up", "c1")]
    folder: Any = SimpleNamespace(session_lines={"c1-sub-1": lines}, origin_ns=0, timeline=CLOCK)
    assert len([*check_client_fault(folder, row)]) == doubts


@pytest.mark.parametrize("reason, doubts", [("silent", 0), ("closed_by_peer", 1)])
def test_a_broker_counts_sessions_that_ended_in_silence(reason: str, doubts: int) -> None:
    events = [
        {"t_ns": 0, "event": "run_begun"},
        {"t_ns": 3, "event": "session_lost", "peer": "b2", "reason": reason},
    ]
    stats = [{"t_ns": at, "sessions_silent": n} for at, n in ((2, 0), (4, 1))]
    process: Any = SimpleNamespace(place="raw/h/b1", lines=lambda name: stats)
    assert len([*_check_counters(process, events, {"b1", "b2"})]) == doubts


@pytest.mark.parametrize("peer, direction, doubts", [
    ("", "both", 0), ("", "in", 1), ("c2", "out", 0), ("c2", "both", 1),
])  # fmt: skip
def test_a_broker_logs_the_direction_of_a_fault_of_its_target(
    tmp_path: Path, peer: str, direction: str, doubts: int
) -> None:
    event = {
        "t_ns": 1, "event": "fault_applied", "fault_id": "f", "verb": "delay", "peer": peer,
        "direction": direction,
    }  # fmt: skip
    folder = run_folder(tmp_path, "partial", {"c1/events.jsonl": json.dumps(event) + "\n"})
    folder._read["faults/faults.jsonl"] = [{"fault_id": "f", "verb": "delay", "target": "c1"}]
    process = ProcessFolder(folder, "h", "c1", tmp_path / "raw" / "h" / "c1")
    found = [each for each in _check_events(folder, process) if "direction" in each]
    assert len(found) == doubts


@pytest.mark.parametrize("begun_s, n_doubts", [(0, 1), (6, 0), (None, 0)])
def test_a_process_that_writes_records_writes_statistics_from_its_start(
    tmp_path: Path, begun_s: int | None, n_doubts: int
) -> None:
    """The first line of statistics is about second 10, and records are from second 3 on."""
    begun_ns = None if begun_s is None else begun_s * SECOND
    files = {"load/exit.json": json.dumps({"t_start_ns": begun_ns})}
    folder = run_folder(tmp_path, "complete", files)
    process = ProcessFolder(folder, "h", "load", tmp_path / "raw" / "h" / "load")
    rows: Any = SimpleNamespace(until=lambda place, layout, ns: max(0, ns // SECOND - 3))
    lines = [{"t_ns": at * SECOND} for at in (10, 11, 12)]
    assert len([*_check_pauses(folder, process, "s", lines, rows)]) == n_doubts


def test_what_is_missing_is_counted_for_sources_with_one_incarnation(tmp_path: Path) -> None:
    """The last numbers of an incarnation that a crash ended may be owed to nobody."""
    lane = {"subscription": "s", "publisher": "c1/0", "incarnation": 1, "missing": 4}
    online = {"totals": {}, "lanes": [lane]}
    folder = run_folder(tmp_path, "complete", {"load/online.json": json.dumps(online)})
    for incarnations, found in (((1,), {"missing": 4}), ((1, 2), {})):
        sources = {("c1/0", number): SourceRows(9, (1, 9), 0, 0) for number in incarnations}
        rows: Any = SimpleNamespace(sources=sources, lanes={}, published={}, acknowledged={})
        assert findings_online(folder, rows) == found


def failed_cut(tmp_path: Path, state: str) -> RunFolder:
    """Return a run with a cut of 700 ms, undone 46 ms after the request."""
    times = {"requested": 1_000, "heal_requested": 1_046, "healed": 1_082}
    row = {
        "fault_id": "cut", "step": "cut", "verb": "cut", "target": "c1-c2", "params": {},
        "state": state, "healed_by": "schedule", "t_planned_ns": SECOND,
        **{f"t_{stage}_ns": ms * SECOND // 1000 for stage, ms in times.items()},
    }  # fmt: skip
    line = {"fault_id": "cut", "step": "cut", "verb": "cut", "target": "c1-c2", "params": {}}
    folder = run_folder(tmp_path, "partial", {}, origin_ns=0)
    folder._read["faults/faults.jsonl"] = (row,)
    folder._read["faults/plan.jsonl"] = (
        {**line, "at_ns": SECOND, "duration_ns": 7 * SECOND // 10},
    )
    return folder


@pytest.mark.parametrize("state, doubts", [("failed", 0), ("healed", 1)])
def test_a_fault_that_failed_lasts_no_longer(tmp_path: Path, state: str, doubts: int) -> None:
    folder = failed_cut(tmp_path, state)
    assert len([*_check_plan(folder)]) == doubts


def test_a_fault_that_was_never_applied_has_no_other_end(tmp_path: Path) -> None:
    folder = failed_cut(tmp_path, "failed")
    assert [*_check_times(folder, folder.fault_rows[0])] == []


def to_text(*lines: dict[str, Any]) -> str:
    """Return a file with a JSON object per line."""
    return "".join(json.dumps(line) + "\n" for line in lines)


def requesting_run(tmp_path: Path, sent: int, received: int, at_s: int, lost: int) -> RunFolder:
    """Return a run in which c2 logged a retransmission request to c1."""
    counts = {"nacks_sent": 0, "nacks_received": 0, "broker_sessions_lost": 0}

    def stats(**last: int) -> str:
        return to_text({"t_ns": 0, **counts}, {"t_ns": 9 * SECOND, **counts, **last})

    request = {"t_ns": at_s * SECOND, "event": "retransmission_requested", "peer": 0}
    files = {
        "c1/stats.jsonl": stats(nacks_received=received, broker_sessions_lost=lost),
        "c2/stats.jsonl": stats(nacks_sent=sent),
        "c2/events.jsonl": to_text(request),
    }
    folder = run_folder(tmp_path, "complete", files)
    folder._read["spec/topology.toml"] = {"brokers": ["c1", "c2"]}
    return folder


@pytest.mark.parametrize("sent, received, at_s, lost, doubts", [
    (1, 1, 5, 0, 0), (1, 0, 5, 0, 1), (0, 1, 5, 0, 1), (2, 1, 5, 0, 1),
    (1, 0, 9, 0, 0),  # the run ended before the request arrived
    (1, 0, 5, 1, 0),  # the request was lost with its session
])  # fmt: skip
def test_a_retransmission_request_is_counted_by_both_brokers(
    tmp_path: Path, sent: int, received: int, at_s: int, lost: int, doubts: int
) -> None:
    folder = requesting_run(tmp_path, sent, received, at_s, lost)
    assert len([*_check_unanswered(folder)]) == doubts


@pytest.mark.parametrize("client, number, state, doubts", [
    ("c1-sub-1.ab", 1, "complete", 0), ("c1-sub-1.ab", 2, "complete", 1),
    ("c1-sub-1.ab", 2, "partial", 0),
    ("reader", 1, "complete", 0),  # a client beside the run
])  # fmt: skip
def test_a_broker_starts_no_subscription_that_no_client_logged(
    tmp_path: Path, client: str, number: int, state: str, doubts: int
) -> None:
    event = {"t_ns": 1, "event": "subscription_started", "client": client, "number": number}
    subscription = {"sub_id": "c1-sub-1/1", "subscriber": "c1-sub-1", "broker": "c1"}
    files = {"c1/events.jsonl": to_text(event), "load/subscriptions.jsonl": to_text(subscription)}
    folder = run_folder(tmp_path, state, files)
    assert len([*_check_unknown(folder, "ab")]) == doubts
