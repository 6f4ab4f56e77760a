"""Tests of run folders that lie in one file: both judges detect the lie, and trust honest runs.

`witnessed_run` is a real run of three brokers, as `bench` left it (`argv` was shortened):

    pubsubctl bench small.toml --faults small-faults.toml --no-check

with the workload and the schedule in its `spec/`.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from brokerd.protocols.registry import DEFINITIONS, read_topology
from brokerd.text import toml_text
from results.reference.files import FileRefusal, read_toml
from results.reference.history import History
from results.reference.history_reader import judge_folder, read_history
from results.rules.facts import RunFacts
from results.rules.losses import find_sent_again
from results.tables.json_files import IntegrityError
from results.tables.load import LoadedRun
from results.tables.logs import read_logs
from results.tables.manifest import read_run
from results.tables.seals import seal
from results.witnesses import RunFolder as WitnessFolder
from results.witnesses import passage
from results.witnesses.broker_events import _check_withheld
from results.witnesses.brokers import doubts_about_brokers, excused_silence_ns
from results.witnesses.client_sessions import _check_ends, check_client_absences
from results.witnesses.counters import _JITTER_NS as SLACK_NS
from results.witnesses.counters import _check_seconds
from results.witnesses.exits import check_exit
from results.witnesses.figures import _check_faults
from results.witnesses.gaps import find_broken
from results.witnesses.link_faults import check_absorbed
from results.witnesses.load_seconds import _check_lateness
from results.witnesses.manifest import _check_length
from results.witnesses.online import doubts_about_findings, findings_online
from results.witnesses.passage import is_separating
from results.witnesses.promises import find_running_protocol
from results.witnesses.publication_counts import _is_exact, check_totals, is_from_zero
from results.witnesses.rows import LaneRows
from results.witnesses.sessions import _attempt_ns, _check_absences, _lasting
from tests.helpers.false_witnesses import (
    ABSORB,
    AWAY,
    FREEZE,
    LIES,
    SUBSCRIBERS,
    journal_change,
    renew_digests,
)
from tests.helpers.false_witnesses.applications import write_consumers, write_databases
from tests.helpers.false_witnesses.folders import accept_loss, convert_to_version_6
from tests.helpers.false_witnesses.lies import PUBLISHERS, events_of
from tests.helpers.forged_folders import RunFolder
from tests.helpers.settled_runs import renew_specification, unpack
from tests.results.test_forged_runs import on_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SECOND = 10**9
HONEST = Path(__file__).parent / "witnessed_run"
TOPOLOGIES = Path(__file__).parents[2] / "bench" / "topologies"
SAMPLE = Path(__file__).parents[2] / "results" / "samples" / "delta-tree-crash"


def lying(folder: Path, name: str) -> Path:
    """Return the honest run with one lie, sealed again."""
    shutil.copytree(HONEST, folder)
    LIES[name].change(RunFolder(folder))
    seal(folder)
    return folder


@pytest.fixture(scope="module")
def folders(
    tmp_path_factory: pytest.TempPathFactory, is_drawn: Callable[[str], bool]
) -> dict[str, Path]:
    """Return the folders of the drawn lies."""
    root = tmp_path_factory.mktemp("lies")
    return {
        name: lying(root / str(number), name) for number, name in enumerate(LIES) if is_drawn(name)
    }


def doubts_of_facts(folder: Path) -> tuple[str, ...]:
    """Return the doubts of Spark's judge before it reads a table."""
    run = read_run(folder)
    return RunFacts.from_run(LoadedRun(run, read_logs(run))).doubts


@pytest.mark.parametrize("folder", [HONEST, SAMPLE], ids=lambda folder: folder.name)
def test_no_witness_of_an_honest_run_contradicts_another(folder: Path) -> None:
    assert judge_folder(folder).doubts == ()
    assert doubts_of_facts(folder) == ()


@pytest.mark.parametrize("are_consumers", [False, True])
def test_the_database_of_an_application_agrees_with_its_records(
    tmp_path: Path, are_consumers: bool
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(HONEST, folder)
    write = write_consumers if are_consumers else write_databases
    write(RunFolder(folder))
    renew_specification(RunFolder(folder))
    renew_digests(RunFolder(folder))
    seal(folder)
    history, facts = read_history(folder), doubts_of_facts(folder)
    assert history.doubts == facts
    assert [each for each in facts if "setting.json" not in each] == []
    assert history.promises.redelivers == are_consumers


def test_a_repeated_delivery_that_the_client_kept_back_is_no_contradiction(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(HONEST, folder)
    run = RunFolder(folder)
    with run.records(SUBSCRIBERS, "deliveries") as rows:
        again = rows.all[40].copy()
        again["layer"], again["received_ns"] = 0, rows.all["received_ns"][50]
        rows.insert(51, again)
    with run.lines(f"raw/{SUBSCRIBERS}/stats.jsonl") as lines:
        lines[-1]["withheld"] = 1
    renew_digests(run)
    seal(folder)
    assert judge_folder(folder).doubts == ()
    assert doubts_of_facts(folder) == ()


def test_a_broker_that_was_killed_logs_no_heal_of_its_fault(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(HONEST, folder)
    with RunFolder(folder).fault(ABSORB) as row:
        row["healed_by"] = "schedule"
    seal(folder)
    assert not any("only the first has fault" in each for each in judge_folder(folder).doubts)


def test_the_exit_of_a_broker_on_a_lost_machine_is_the_one_of_the_fault() -> None:
    """The cause of an exit names fault and broker; the agent starts the broker again."""
    at = {"t_applied_ns": 1, "t_observed_ns": 3 * SECOND, "t_requested_ns": 0}
    lost = {"fault_id": "f", "verb": "host-loss", "target": "h", "params": {}, **at}
    stated = {
        "process": "c2", "state": "exited", "exit_cause": "fault:f@c2", "pid": 7,
        "t_start_ns": 1, "t_exit_ns": SECOND,
    }  # fmt: skip
    process: Any = SimpleNamespace(
        host="h", name="c2", place="raw/h/c2", has=lambda name: True, document=lambda name: stated
    )
    folder: Any = SimpleNamespace(
        fault_rows=[lost | {"evidence": json.dumps({"c2": {"pid": 7}})}], is_witnessed=True,
        document=lambda name: {"brokers": [{"broker": "c2", "host": "h"}]}, is_foreign=False,
        manifest={"state": "complete"}, origin_ns=0, phase_ns=lambda name: None,
        processes=[process], timeline=SimpleNamespace(
            to_timeline=lambda ns, host: ns, error_ns=lambda one, other: 0
        ),
    )  # fmt: skip
    assert [*check_exit(folder, process)] == []
    stated |= {"pid": 8}
    assert len([*check_exit(folder, process)]) == 1


@pytest.mark.parametrize(
    "delivery, doubts", [("at-most-once", 0), ("at-least-once", 1), ("exactly-once", 1)]
)
def test_acknowledgements_without_a_promise_need_no_server(
    monkeypatch: pytest.MonkeyPatch, delivery: str, doubts: int
) -> None:
    """Clients with quality of service 0 acknowledge written publications."""
    monkeypatch.setattr(
        passage, "_blockages", lambda folder, rows: iter([SimpleNamespace(why="freeze-n1")])
    )
    folder: Any = SimpleNamespace(is_foreign=True, workload={"guarantee": {"delivery": delivery}})
    rows: Any = SimpleNamespace(breaches=lambda blockages: [(0, 79)])
    assert len([*passage.doubts_about_passage(folder, rows)]) == doubts


@pytest.mark.parametrize(
    "opened, reason, length_s, lasts",
    [(False, "closed_by_peer", 1, False), (False, "closed_by_peer", 3, True),
     (False, "silent", 1, True), (True, "closed_by_peer", 1, True)],
)  # fmt: skip
def test_an_accepted_session_that_its_opener_gave_up_has_one_end(
    opened: bool, reason: str, length_s: int, lasts: bool
) -> None:
    about = {"peer": "p1", "session": 56}
    lines = [
        {"t_ns": 0, "event": "run_begun"},
        {"t_ns": SECOND, "event": "session_established", "opened": opened, **about},
        {"t_ns": (1 + length_s) * SECOND, "event": "session_lost", "reason": reason, **about},
    ]
    process: Any = SimpleNamespace(host="h", name="s2", lines=lambda name: lines)
    folder: Any = SimpleNamespace(
        fault_rows=(), brokers={}, document=lambda name: {}, processes=(), topology={},
        timeline=SimpleNamespace(to_timeline=lambda ns, host: ns),
    )  # fmt: skip
    assert _lasting(folder, process, "p1") == [SECOND] * lasts


def test_an_attempt_lasts_as_long_as_its_topology_states() -> None:
    topologies: tuple[dict[str, Any], ...] = ({}, {"session": {"connect_timeout": "5s"}})
    folders: list[Any] = [SimpleNamespace(topology=topology) for topology in topologies]
    assert [*map(_attempt_ns, folders)] == [2_250_000_000, 5_250_000_000]


def test_a_late_start_of_a_load_generator_excuses_distances() -> None:
    """A load generator that waits for a processor at its start ends its sessions late."""
    lines = [{"t_ns": second * SECOND} for second in range(3, 6)]
    load: Any = SimpleNamespace(
        host="h", name="load", is_load=True, lines=lambda name: lines,
        document=lambda name: {"t_start_ns": SECOND // 2},
    )  # fmt: skip
    folder: Any = SimpleNamespace(
        processes=[load], phase_ns=lambda name: None,
        timeline=SimpleNamespace(to_timeline=lambda ns, host: ns),
    )  # fmt: skip
    assert excused_silence_ns(folder) == 2 * (5 * SECOND // 2 - 1_100_000_000)


@pytest.mark.parametrize("doubts, lost_ns", [(0, SECOND), (0, 5 * SECOND), (1, 60 * SECOND)])
def test_a_client_may_have_lost_its_session_before_it_is_disconnected(
    doubts: int, lost_ns: int
) -> None:
    away = {"subscriber": "s1-sub-1", "t_left_ns": 5 * SECOND, "t_back_ns": 6 * SECOND}
    files = {"absences.jsonl": [away], "sessions.jsonl": []}
    process: Any = SimpleNamespace(host="h", place="raw/h/load", lines=files.__getitem__)
    folder: Any = SimpleNamespace(
        processes=[process], workload={"churn": {}}, manifest={}, fault_rows=(), origin_ns=0,
        session_lines={"s1-sub-1": [(0, "up", 1), (lost_ns, "down", 1)]},
        phase_ns=lambda name: None, timeline=SimpleNamespace(to_timeline=lambda ns, host: ns),
    )  # fmt: skip
    assert len([*check_client_absences(folder)]) == doubts


@pytest.mark.parametrize("state, doubts", [("complete", 1), ("partial", 0)])
@pytest.mark.parametrize("at_ns", [-SECOND, SECOND])
def test_the_clients_of_an_interrupted_run_may_end_before_any_drain(
    state: str, doubts: int, at_ns: int
) -> None:
    down = {"t_ns": at_ns, "event": "down", "client": "c1-pub-1", "reason": "closed_by_us"}
    process: Any = SimpleNamespace(host="h", place="raw/h/load", lines=lambda name: [down])
    folder: Any = SimpleNamespace(
        manifest={"state": state}, fault_rows=(), origin_ns=0, phase_ns=lambda name: None,
        timeline=SimpleNamespace(to_timeline=lambda ns, host: ns),
    )  # fmt: skip
    assert len([*_check_ends(folder, process)]) == doubts


@pytest.mark.parametrize("state, doubts", [("complete", True), ("partial", False)])
def test_a_broker_that_was_replaced_when_its_run_broke_off_logs_no_sessions(
    tmp_path: Path, state: str, doubts: bool
) -> None:
    """The replaced process closed its sessions; its successor never received the run."""
    folder = shutil.copytree(HONEST, tmp_path / "run")
    run = RunFolder(folder)
    with run.lines("raw/local1/c1/events.jsonl") as rows:
        last = next(n for n, row in enumerate(rows) if "c1-pub-1" in str(row.get("peer")))
        rows[:] = [*rows[:last], {"t_ns": rows[last]["t_ns"], "event": "stopped"}]
    with run.document("manifest.json") as manifest:
        manifest["state"] = state
        at_ns = manifest["origin_ns"]
    with run.lines("log.jsonl") as rows:
        rows.append({"t_ns": at_ns, "what": "rolling", "stage": "begun", "at_ns": at_ns})
    witnesses = WitnessFolder(folder, read_run(HONEST))
    found = [*doubts_about_brokers(witnesses)]
    assert any("c1/events.jsonl disagree on up of" in each for each in found) == doubts


def test_the_journal_has_accepted_losses_since_version_6(tmp_path: Path) -> None:
    """The controllers of older folders did not log the losses that brokers accepted."""
    folder = shutil.copytree(HONEST, tmp_path / "run")
    found = []
    for change in (accept_loss, convert_to_version_6):
        change(RunFolder(folder))
        seal(folder)
        found.append(len(judge_folder(folder).doubts))
    assert found == [0, 1]


@pytest.mark.parametrize("when", ["before the run", "in the middle"])
def test_both_readers_find_what_is_sent_again_after_an_accepted_loss(
    tmp_path: Path, when: str
) -> None:
    """Publications without an acknowledgement at the loss, of publishers at this broker."""
    folder = shutil.copytree(HONEST, tmp_path / "run")
    run = RunFolder(folder)
    accept_loss(run)
    with run.records(PUBLISHERS, "acks") as acks:
        acknowledged = acks.all["acked_ns"].copy()
        sources = acks.sidecar["tables"]["publishers"]
    at_ns = int(acknowledged[len(acknowledged) // 2]) if when == "in the middle" else 1
    with run.lines(events_of(run, "c1")) as events:
        next(each for each in events if each["event"] == "loss_accepted")["t_ns"] = at_ns
    seal(folder)
    history, read = read_history(folder), read_run(folder)
    logs = read_logs(read)
    found = {log.source: log.sent_again for log in history.publishers if log.sent_again}
    assert found == find_sent_again(read, logs)
    with run.records(PUBLISHERS, "publications") as rows:
        sent = {
            (sources[row["publisher"]], int(row["incarnation"]), int(row["sequence"]))
            for row in rows.all
            if row["sent_ns"] <= at_ns
        }
    with run.records(PUBLISHERS, "acks") as acks:
        for row in acks.all[acks.all["acked_ns"] < at_ns]:
            name, incarnation = sources[row["publisher"]], int(row["incarnation"])
            sent -= {(name, incarnation, n) for n in range(row["first"], row["last"] + 1)}
    wanted = {each for each in sent if each[0].startswith("c1/")}
    assert {(name, *key) for name, keys in found.items() for key in keys} == wanted
    assert bool(wanted) == (when == "in the middle")
    rows_of_run = RunFacts.from_run(LoadedRun(read, logs))
    assert rows_of_run.sent_again == found
    online = findings_online(WitnessFolder(folder, read), None, has_sent_again=True)
    assert "order_differs" not in online


def _joined(folder: Path, *names: str) -> None:
    journal_change(lambda manifest: manifest.update(joined=[*names]))(RunFolder(folder))


def test_brokers_that_joined_and_left_are_those_of_the_deployment(tmp_path: Path) -> None:
    """Folders of earlier programs have no file with the changes of a topology."""
    folder = shutil.copytree(HONEST, tmp_path / "run")
    topology = read_toml(folder / "spec" / "topology.toml")
    parameters = json.loads((folder / "manifest.json").read_text())["parameters"]
    first = {**topology, "brokers": ["c1", "c2"], "links": [["c1", "c2"]]}
    changed = {**first, "joined": [["c3", "c2", ""], ["c4", "c3", ""]], "left": ["c4"]}
    listed = {**topology, "brokers": [*topology["brokers"], "c4"], "left": ["c4"]}
    digest = read_topology(first, "").digest("delta_tree", parameters)

    def write(name: str, values: dict[str, Any]) -> None:
        (folder / "spec" / name).write_text(toml_text(values))
        renew_specification(RunFolder(folder))

    def find(*joined: str) -> list[str]:
        _joined(folder, *joined)
        renew_digests(RunFolder(folder))
        seal(folder)
        return [each.partition(": ")[0] for each in judge_folder(folder).doubts]

    journal_change(lambda manifest: manifest.update(topology_digest=digest))(RunFolder(folder))
    for path in folder.glob("raw/*/*/setting.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"topology_digest": digest}))
    other = "manifest.json and spec/topology.toml disagree on topology_digest"
    assert (find("c3"), find(), find("c2", "c3")) == ([], [other], [other])
    assert find("c3", "x") == ["manifest.json and spec/topology.toml disagree on joined"]
    write("topology.toml", listed)
    assert find("c3", "c4") == []
    write("topology.toml", topology)
    convert_to_version_6(RunFolder(folder))
    assert find("c3") == [
        "spec/changes.toml is missing, and manifest.json shows that it was written"
    ]
    write("changes.toml", changed)
    assert find("c3", "c4") == []
    assert find("c3") == ["manifest.json and spec/changes.toml disagree on joined"]
    write("changes.toml", {**changed, "joined": [["c3", "c1", ""], ["c4", "c3", ""]]})
    assert find("c3", "c4") == [
        "spec/topology.toml and spec/changes.toml disagree on brokers and links"
    ]
    write("changes.toml", {**changed, "tree": {"delta": 0}})
    assert "manifest.json and spec/changes.toml disagree on topology_digest" in find("c3", "c4")


def test_a_drain_that_began_late_is_no_long_drain(tmp_path: Path) -> None:
    """A rolling replacement took longer than the load, and the controller waited for its end."""
    folder = shutil.copytree(HONEST, tmp_path / "run")
    run = RunFolder(folder)
    with run.document("manifest.json") as manifest:
        drain = manifest["phases"][-1]
        drain["t1_ns"] += 10 * SECOND
    with run.lines("log.jsonl") as rows:
        begun = next(row for row in rows if row.get("phase") == "drain")
        begun["t_ns"] += 10 * SECOND
        rows[-1]["t_ns"] += 10 * SECOND
    witnesses = WitnessFolder(folder, read_run(HONEST))
    assert [*_check_length(witnesses, witnesses.journal[-1])] == []
    with run.lines("log.jsonl") as rows:
        rows[-1]["t_ns"] -= 10 * SECOND
    witnesses = WitnessFolder(folder, read_run(HONEST))
    assert len([*_check_length(witnesses, witnesses.journal[-1])]) == 1


def test_a_slow_client_and_a_slow_broker_are_no_reason_for_a_gap(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(HONEST, folder)

    def spans(verb: str, number: int) -> tuple[int, int]:
        with RunFolder(folder).fault(number) as row:
            row["verb"] = verb
        witnesses = WitnessFolder(folder, read_run(HONEST))
        return len(witnesses.absences("c3-sub-2")), len([*find_broken(witnesses)])

    away, stopped = spans("client-disconnect", AWAY)
    assert spans("client-slow", AWAY) == (away - 1, stopped)
    assert spans("cpu-share", FREEZE) == (away - 1, stopped - 1)


def test_a_dead_server_of_several_keeps_no_brokers_apart() -> None:
    topology = read_toml(TOPOLOGIES / "proxies.toml")
    running = find_running_protocol({"protocol": "multi_proxy"}, topology)
    assert running is not None
    brokers = {"e1/1": "e1", "e2-sub-1/1": "e2"}
    apart = {
        down: is_separating(running, frozenset(down), frozenset(), brokers)("e1/1", "e2-sub-1/1")
        for down in (("v1",), ("x1",), ("v1", "v2", "v3"), ("x1", "x2"), ("e2",))
    }
    assert [down for down, is_apart in apart.items() if is_apart] == [
        ("v1", "v2", "v3"), ("x1", "x2"), ("e2",),
    ]  # fmt: skip


@pytest.mark.parametrize("is_visited", [False, True])
def test_a_broker_that_other_clients_visited_may_deliver_more_than_its_own_received(
    is_visited: bool,
) -> None:
    visits = ((3, "up", "c3"), (4, "down", "c3")) if is_visited else ()
    folder: Any = SimpleNamespace(
        rolling_ns=None,
        clients={"c3-sub-1": ("subscriber", "c3"), "c1-sub-1": ("subscriber", "c1")},
        session_lines={
            "c3-sub-1": ((1, "up", "c3"), (9, "down", "c3")),
            "c1-sub-1": ((1, "up", "c1"), *visits, (9, "down", "c1")),
        },
    )
    lines = ({"t_ns": 1, "publications_delivered": 0},)
    process: Any = SimpleNamespace(name="c3", lines=lambda name: lines)
    rows: Any = SimpleNamespace(
        kept_back={}, lanes={("c3-sub-1/1", "c1/0", 1): LaneRows(data=5)}, delivered={},
    )  # fmt: skip
    assert _is_exact(folder, rows, process, ["c3-sub-1"]) == (not is_visited)


def test_publishers_at_a_broker_leave_its_deliveries_exact() -> None:
    folder: Any = SimpleNamespace(
        rolling_ns=None,
        clients={"c3-sub-1": ("subscriber", "c3"), "c3-pub-1": ("publisher", "c3")},
        session_lines=dict.fromkeys(("c3-sub-1", "c3-pub-1"), ((1, "up", "c3"), (9, "down", "c3"))),
    )
    process: Any = SimpleNamespace(
        name="c3",
        lines=lambda name: ({"t_ns": 1, "publications_delivered": 0, "sessions_lost": 0},),
    )
    rows: Any = SimpleNamespace(
        kept_back={}, lanes={("c3-sub-1/1", "c3/0", 1): LaneRows(data=5)}, delivered={},
    )  # fmt: skip
    assert _is_exact(folder, rows, process, ["c3-sub-1"])


@pytest.mark.parametrize("counter", ["publications_withheld", "notifiers_sent"])
@pytest.mark.parametrize("first, event, partitions, verb, doubts", [
    (0, "session_lost", 0, "freeze", 1), (4, "session_lost", 0, "freeze", 0),
    (0, "partition_new", 0, "freeze", 0), (0, "lines_left_out", 0, "freeze", 0),
    (0, "session_lost", 1, "freeze", 0), (0, "session_lost", 0, "restart", 0),
])  # fmt: skip
def test_publications_are_withheld_during_partitions_alone(
    counter: str, first: int, event: str, partitions: int, verb: str, doubts: int
) -> None:
    lines = {
        "stats.jsonl": ({counter: first, "partitions": partitions}, {counter: 4, "partitions": 0}),
        "events.jsonl": ({"t_ns": 1, "event": event},),
    }
    process: Any = SimpleNamespace(name="b", place="raw/h/b", host="h", lines=lines.__getitem__)
    folder: Any = SimpleNamespace(
        processes=[process], brokers=["b"], rolling_ns=None, workload={"protocol": "delta_tree"},
        fault_rows=[{"verb": verb, "target": "b"}],
        timeline=SimpleNamespace(to_timeline=lambda ns, host: ns),
    )  # fmt: skip
    found = [*_check_withheld(folder)]
    assert len(found) == doubts
    assert all("stats.jsonl and raw/*/*/events.jsonl disagree" in each for each in found)


@pytest.mark.parametrize("ended_ns, stopped, doubts", [
    (2_300_000_000, "", 2), (3_000_000_000, "", 0), (2_300_000_000, "c2", 0),
    (2_300_000_000, "c1", 0), (2_300_000_000, "c3", 2),
])  # fmt: skip
def test_a_last_count_of_an_absorb_may_have_had_no_answer(
    ended_ns: int, stopped: str, doubts: int
) -> None:
    """The last answer of c1 took too long, or the controller asked c2 too, which was stopped."""
    lines = tuple(
        {"t_ns": at_ns, "event": "fault_counted", "fault_id": "a@c1"}
        | {"absorbed_publications": n, "absorbed_bytes": 10 * n}
        for at_ns, n in ((1_200_000_000, 5), (2_100_000_000, 9))
    )
    brokers: Any = [
        SimpleNamespace(name=name, place=name, host="h", lines=lambda _, of=of: of)
        for name, of in (("c1", lines), ("c2", ()), ("c3", ()))
    ]
    kill = {"verb": "kill", "target": stopped, "t_requested_ns": 1_500_000_000}
    folder: Any = SimpleNamespace(
        brokers=["c1", "c2", "c3"], fault_rows=[kill], schedule={}, manifest={}, origin_ns=0,
        document=lambda name: {},
        lines=lambda name: [{"step": "a", "duration_ns": 1_000_000_000}],
        timeline=SimpleNamespace(to_timeline=lambda ns, host: ns, error_ns=lambda a, b: 0),
    )  # fmt: skip
    row = {
        "fault_id": "a", "step": "a", "verb": "absorb", "target": "c1-c2", "state": "healed",
        "t_applied_ns": 1_000_000_000, "t_heal_requested_ns": ended_ns,
        "absorbed_msgs": 5, "absorbed_bytes": 50,
    }  # fmt: skip
    assert len([*check_absorbed(folder, row, brokers)]) == doubts


@pytest.mark.parametrize("published", [(10, 10), (10, 11)])
@pytest.mark.parametrize("protocol, received, doubts", [
    ("delta_tree", (10, 10), 0), ("delta_tree", (10, 0), 1), ("delta_tree", (11, 10), 1),
    ("gryphon", (10, 0), 0), ("gryphon", (10, 10), 1),
    ("multi_proxy", (10, 0), 0), ("multi_proxy", (10, 2), 0), ("multi_proxy", (9, 0), 1),
])  # fmt: skip
def test_received_counts_equal_published_and_forwarded_counts_without_faults(
    protocol: str, received: tuple[int, int], doubts: int, published: tuple[int, int]
) -> None:
    sent, acknowledged = ({"raw/h/load-pub": n} for n in published)
    folder: Any = SimpleNamespace(
        fault_rows=(), rolling_ns=None, session_lines={"c1-pub-1": ((1, "up"), (2, "down"))},
        workload={"protocol": protocol}, origin_ns=0, processes=(),
        overlay_kind=DEFINITIONS[protocol].kind,
        timeline=SimpleNamespace(to_timeline=lambda ns, host: ns),
    )  # fmt: skip
    rows: Any = SimpleNamespace(published=sent, acknowledged=acknowledged)

    def broker(n: int, forwarded: int) -> Any:
        first = {"publications_received": 3, "sessions_lost": 0, "t_ns": 1}
        last = {"publications_received": n, "publications_forwarded": forwarded}
        return SimpleNamespace(lines=lambda name: (first, last), host="h")

    brokers = [broker(received[0], 10), broker(received[1], 0)]
    found = [*check_totals(folder, rows, brokers)]
    assert len(found) == (doubts if len({*published}) == 1 else 0)


@pytest.mark.parametrize("rates, has_times", [(("5/s", "2/s"), True), (("5/s", "max"), False)])
def test_publications_at_rate_max_are_due_at_no_time(rates: Sequence[str], has_times: bool) -> None:
    folder: Any = SimpleNamespace(workload={"publishers": [{"rate": rate} for rate in rates]})
    assert WitnessFolder.has_due_times.fget(folder) == has_times


@pytest.mark.parametrize("lost, sent, is_zero", [
    (0, 0, True), (1, 2, False), (1, 3, True), (None, 2, False),
])  # fmt: skip
def test_a_broker_that_ended_no_session_counts_from_nothing(
    lost: int | None, sent: int, is_zero: bool
) -> None:
    folder: Any = SimpleNamespace(
        origin_ns=0, timeline=SimpleNamespace(to_timeline=lambda ns, host: ns)
    )
    rows: Any = SimpleNamespace(published={"raw/h/load": 9}, until=lambda *asked: sent)
    line = {"t_ns": 1, "publications_received": 3} | (
        {} if lost is None else {"sessions_lost": lost}
    )
    process: Any = SimpleNamespace(host="h", lines=lambda name: (line,))
    assert is_from_zero(folder, rows, [process]) == is_zero


@pytest.mark.parametrize("ahead_ns, doubts", [(0, 0), (SLACK_NS - 1, 0), (SLACK_NS, 1)])
@pytest.mark.parametrize("counted, error_ns", [((0, 1, 2), 0), ((0, 1, 3), 0), ((0, 1, 2), 5)])
def test_no_client_has_more_at_any_second_than_brokers_have_counted(
    ahead_ns: int, doubts: int, counted: tuple[int, ...], error_ns: int
) -> None:
    """The second publication is received just before the second in which its broker counts it."""
    received = [SECOND // 2, SECOND - ahead_ns]
    lines = [{"t_ns": n * SECOND, "publications_delivered": n_counted}
             for n, n_counted in zip((0, 1, 2), counted, strict=True)]  # fmt: skip
    broker: Any = SimpleNamespace(host="h", place="raw/h/b", lines=lambda name: lines)
    folder: Any = SimpleNamespace(timeline=SimpleNamespace(error_ns=lambda one, other: error_ns))
    rows: Any = SimpleNamespace(
        whole=frozenset({"raw/h/load"}),
        until=lambda place, layout, at_ns: sum(each <= at_ns for each in received),
    )
    found = [
        *_check_seconds(
            folder, rows, [broker], "publications_delivered", "deliveries", {"raw/h/load": 2}
        )
    ]
    is_comparable = error_ns == 0
    assert len(found) == (doubts if is_comparable else 0)


@pytest.mark.parametrize("backlog, doubts", [(0, 1), (1, 0)])
def test_publications_that_still_wait_may_be_later_than_all_records(
    backlog: int, doubts: int
) -> None:
    """The broker of the publisher did not return."""
    last = {"blocked_us": 0, "late_max_us": 0, "backlog": backlog}
    lines = [{**last, "late_max_us": 48_484}, last]
    process: Any = SimpleNamespace(place="raw/h/load", is_publisher=True)
    rows: Any = SimpleNamespace(late_ns={"raw/h/load": (10**9, 24_343_000)})
    assert len([*_check_lateness(process, "stats.jsonl", lines, rows)]) == doubts


@pytest.mark.parametrize("stages, is_down", [
    ({}, False), ({"applied"}, True), ({"applied", "observed"}, True),
    ({"applied", "observed", "healed"}, True),
    ({"applied", "observed", "healed", "recovered"}, False),
])  # fmt: skip
def test_a_broker_is_down_from_its_end_until_it_has_recovered(
    stages: set[str], *, is_down: bool
) -> None:
    """A restart may fail, and a broker may take long to recover."""
    row = {
        "fault_id": "f",
        "verb": "kill",
        "target": "b1",
        **{f"t_{each}_ns": 1 for each in stages},
    }
    folder: Any = SimpleNamespace(fault_rows=[row])
    for found in ((), ("b1",)):
        doubts = [*_check_faults(folder, {"down": found})]
        assert bool(doubts) == (is_down != bool(found)), doubts


@pytest.mark.parametrize("left_ns, doubts", [(9, 0), (8, 1), (1, 1)])
def test_a_subscriber_is_absent_once_at_a_time(left_ns: int, doubts: int) -> None:
    rows = [("a", left_ns, left_ns + 8), ("b", 2, 9), ("a", 1, 9)]
    lines = [{"subscriber": who, "t_left_ns": left, "t_back_ns": back} for who, left, back in rows]
    process: Any = SimpleNamespace(place="raw/h/load", lines=lambda name: lines)
    assert len([*_check_absences(process)]) == doubts


@pytest.mark.parametrize("order, doubts", [("publisher", 1), ("topic", 0), ("none", 0)])
def test_steps_back_between_topics_are_no_finding_where_order_is_of_topics(
    order: str, doubts: int
) -> None:
    assert len([*doubts_about_findings({"reordered": 68}, {}, order)]) == doubts


@pytest.mark.parametrize("name", [*LIES])
def test_a_lie_alone_is_found_out(tmp_path: Path, name: str) -> None:
    try:
        judgement = judge_folder(lying(tmp_path / "run", name))
    except FileRefusal as refused:
        said = [str(refused)]
    else:
        said = [*judgement.doubts, *judgement.counts.violations]
        assert judgement.verdict != "VALID"
    assert any(LIES[name].says in each for each in said), said


def _journal(what: str, change: Callable[[list[Any], Any], object]) -> Callable[[RunFolder], None]:
    def both(run: RunFolder) -> None:
        with run.lines("log.jsonl") as rows:
            change(rows, next(row for row in rows if row["what"] == what))

    return both


FOREIGN_LIES: dict[str, tuple[Callable[[RunFolder], None], str]] = {
    "another quality of service": (
        journal_change(lambda manifest: manifest["system"]["settings"].update(qos=1)),
        "manifest.json and spec/system.json disagree on system",
    ),
    "another version": (
        journal_change(lambda manifest: manifest["system"].update(version="9")), "on system",
    ),
    "no version": (journal_change(lambda manifest: manifest["system"].pop("version")), "on system"),
    "servers needed less": (
        journal_change(lambda manifest: manifest["headline"].update(
            broker_cpu_us_per_message_mean=1.0)), "broker_cpu_us_per_message_mean",
    ),
    "servers needed another time": (
        _journal("processors", lambda rows, row: row["seconds"].update(n1=0.04)),
        "broker_cpu_us_per_message_mean",
    ),
    "a reading of no stage": (
        _journal("processors", lambda rows, row: row.update(stage="before")), "processor times",
    ),
    "a phase twice": (_journal("phase", lambda rows, row: rows.insert(2, row)), "lines about"),
    "a server left a file": (
        lambda run: run.path("raw/local/n1/state.db").write_text("x") and None,
        "raw/local/n1/state.db is no file",
    ),
    "a second description": (
        lambda run: run.path("spec/system2.json").write_text("{}") and None, "is no file of a run",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ["", *FOREIGN_LIES])
def test_a_lie_about_servers_of_another_system_is_found_out(tmp_path: Path, name: str) -> None:
    """The archived run is `bench external/mosquitto-qos2 --faults cut-clients`, packed."""
    folder = unpack(Path(__file__).parent / "foreign_run.tar.gz", tmp_path / "run")
    change, says = FOREIGN_LIES.get(name, (lambda run: None, ""))
    change(RunFolder(folder))
    seal(folder)
    judgement = judge_folder(folder)
    assert (judgement.verdict, judgement.doubts == ()) == (
        ("UNKNOWN", False) if name else ("VALID", True)
    )
    for said in (judgement.doubts, doubts_of_facts(folder)):
        assert any(says in each for each in said) == bool(name), said


def test_there_are_lies_of_every_file() -> None:
    assert len(LIES) >= 380


@pytest.fixture(scope="module")
def readings(folders: dict[str, Path]) -> dict[str, tuple[History, tuple[str, ...]]]:
    """Return the history and the doubts of facts of each folder that both judges read."""
    found = {}
    for name, folder in folders.items():
        with suppress(IntegrityError, FileRefusal):
            found[name] = read_history(folder), doubts_of_facts(folder)
    return found


def test_both_readers_count_the_same_and_doubt_the_same(
    readings: dict[str, tuple[History, tuple[str, ...]]],
) -> None:
    wrong = {}
    for name, (history, facts) in readings.items():
        # The others are found in tables by one judge, and in files by the other.
        ours, theirs = (
            {each for each in said if _is_of_witness(each)} for said in (facts, history.doubts)
        )
        if ours != theirs:
            wrong[name] = ours ^ theirs
    assert wrong == {}


def _is_of_witness(doubt: str) -> bool:
    return " disagree" in doubt or "shows that it was written" in doubt


@pytest.mark.spark
def test_a_false_statement_in_any_one_file_is_detected_on_spark(
    spark: "SparkSession",
    folders: dict[str, Path],
    readings: dict[str, tuple[History, tuple[str, ...]]],
) -> None:
    histories = {name: history for name, (history, facts) in readings.items() if not facts}
    judged = on_spark(spark, {name: folders[name] for name in histories}, histories)
    assert {name for name, each in judged.items() if each.outcome == "VALID"} == set()
