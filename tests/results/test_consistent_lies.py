"""Tests of a forger that changes all files of one author and renews all digests.

`witnessed_runs` holds a real run of each further protocol, on three brokers in a row, as `bench`
left it (`argv` was shortened). The workload has two publishers at c1 and two subscribers at c3. The
faults are those of `witnessed_run`.
"""

import shutil
from pathlib import Path

import pytest

from results.reference.files import FileRefusal
from results.reference.history_reader import count_rows, judge_folder
from results.rules.terms import ON_TRUST
from results.tables.logs import read_logs
from results.tables.manifest import read_run
from results.tables.row_counts import rows_of
from results.witnesses.folder import RunFolder
from results.witnesses.records import doubts_about_records
from tests.helpers.consistent_lies import LIES
from tests.helpers.lie_tables import tell
from tests.helpers.settled_runs import unpack, with_repeated_settings

HERE = Path(__file__).parent
RUNS = (
    *sorted(path.name.partition(".")[0] for path in HERE.glob("witnessed_runs/*.tar.gz")),
    "delta_tree-faults",
)
LOSSY = "best_effort-faults"
"""The run with losses."""
BOUND_BY = {
    "c1_received_more": ("ges-calm", "gryphon-faults", "durable-faults"),
    "c2_received_fewer": ("ges-calm", "ges_reliable-calm"),
    "c2_received_more": ("ges-calm", "ges_reliable-calm"),
    "c3_received_fewer": ("ges-calm",),
    "c3_received_more": ("ges-calm",),
    "c3_delivered_more": ("ges-calm", "ges_reliable-calm"),
    "positions_were_exchanged": ("ges_reliable-calm",),
    "c3_requested_nothing_again": ("gryphon-faults",),
    "c3_asked_more": ("gryphon-faults", "durable-faults"),
    "c3_requested_at_the_end": ("durable-faults", "gryphon-faults"),
    "c1_wrote_nothing_for_three_seconds": ("ges-calm", "ges_reliable-calm"),
    "c2_wrote_nothing_for_three_seconds": ("ges_reliable-calm", "ges-calm"),
    "c3_wrote_nothing_for_three_seconds": ("ges-calm",),
    "c1_delivered_what_is_not_published": ("durable-faults",),
}
"""Runs that bind the subject of a lie: most of them without retransmissions by brokers."""
CONTRADICTED = [
    name
    for name, lie in LIES.items()
    if lie.says
    and name not in {f"c{n}_delivered_{word}" for n in (1, 2) for word in ("fewer", "more")}
]
"""The lies that a file of another author contradicts; c1 and c2 have no subscribers."""


def judged(folder: Path) -> tuple[str, list[str]]:
    """Return the verdict of a folder, and the doubts and violations."""
    try:
        judgement = judge_folder(folder)
    except FileRefusal as refused:
        return "refused", [str(refused)]
    return judgement.verdict, [*judgement.doubts, *judgement.counts.violations]


def run_named(name: str, folder: Path) -> Path:
    """Return a copy of the named run in a folder of its own."""
    if name == "delta_tree-faults":
        return with_repeated_settings(Path(shutil.copytree(HERE / "witnessed_run", folder)))
    return with_repeated_settings(unpack(HERE / "witnessed_runs" / f"{name}.tar.gz", folder))


def runs_of(lie: str) -> tuple[str, ...]:
    """Return the runs that bind the subject of a lie; all runs if no table names the lie."""
    return BOUND_BY.get(lie, RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_an_honest_run_of_a_protocol_is_not_doubted(tmp_path: Path, name: str) -> None:
    wanted = ("INVALID", ["missing"]) if name == LOSSY else ("VALID", [])
    assert judged(run_named(name, tmp_path / name)) == wanted


@pytest.mark.parametrize("number", range(len(CONTRADICTED)))
def test_a_lie_in_all_files_of_one_author_is_contradicted_by_another(
    tmp_path: Path, number: int
) -> None:
    """One run is forged per lie; the runs take turns."""
    lie, names = LIES[CONTRADICTED[number]], runs_of(CONTRADICTED[number])
    for turn in range(len(names)):
        folder = run_named(names[(number + turn) % len(names)], tmp_path / str(turn))
        if tell(folder, lie):
            verdict, said = judged(folder)
            assert verdict != "VALID"
            assert any(lie.says in each for each in said), said
            return
    pytest.fail(f"no run has anything to tell {lie.name} of")


@pytest.mark.parametrize(
    "lie, name",
    [
        ("c1_never_lost_a_broker", "gryphon-faults"),
        ("c2_never_lost_a_broker", "gryphon-faults"),
        ("c2_never_lost_a_broker", "durable-faults"),
        ("c3_requested_nothing_again", "gryphon-faults"),
        ("c1_delivered_what_is_not_published", "durable-faults"),
        ("the_window_was_smaller", "gryphon-faults"),
        ("gaps_were_permitted", "gryphon-faults"),
        ("less_was_absorbed", "gryphon-faults"),
        ("c2_forwarded_during_an_absorb", "gryphon-faults"),
        ("c3_requested_at_the_end", "durable-faults"),
        ("c2_wrote_nothing_for_three_seconds", "ges-calm"),
        ("c1_printed_a_line", "ges-calm"),
    ],
)
def test_a_lie_of_a_run_is_contradicted(tmp_path: Path, lie: str, name: str) -> None:
    folder = run_named(name, tmp_path / name)
    assert tell(folder, LIES[lie])
    verdict, said = judged(folder)
    assert verdict != "VALID"
    assert any(LIES[lie].says in each for each in said), said


def test_a_pause_of_all_brokers_is_of_the_machine(tmp_path: Path) -> None:
    folder = run_named("ges-calm", tmp_path / "run")
    for broker in ("c1", "c2", "c3"):
        assert tell(folder, LIES[f"{broker}_wrote_nothing_for_three_seconds"])
    assert judged(folder) == ("VALID", [])


def test_both_readers_count_exchanged_places(tmp_path: Path) -> None:
    """Subscriptions share none of the places, and places of a source still rise."""
    folder = run_named("ges_reliable-calm", tmp_path / "run")

    def count() -> tuple[int, int]:
        run = read_run(folder)
        return count_rows(folder).displaced, rows_of(run, read_logs(run)).displaced

    assert count() == (0, 0)
    assert tell(folder, LIES["positions_were_exchanged"])
    one, other = count()
    assert one == other > 0


def test_only_storages_place_a_publication_in_several_streams(tmp_path: Path) -> None:
    """Each of two storages serves the subscriber of its unit; both subscribers want everything."""
    folder = unpack(HERE / "storages_run.tar.gz", tmp_path / "run")
    run = read_run(folder)
    one, other = count_rows(folder), rows_of(run, read_logs(run))
    assert (one.displaced, one.scattered) == (other.displaced, other.scattered) == (0, 64)
    assert judged(folder) == ("VALID", [])
    workload = folder / "spec" / "workload.toml"
    workload.write_text(workload.read_text().replace('"ges_reliable"', '"gryphon"'))
    assert "further streams" in "".join(doubts_about_records(RunFolder(folder, run), one))


def test_a_lie_that_no_file_contradicts_is_in_the_list_of_facts_on_trust() -> None:
    uncovered = [
        lie.name
        for lie in LIES.values()
        if not lie.says and not any(lie.trust in line for line in ON_TRUST if lie.trust)
    ]
    assert uncovered == []
    assert {lie.family for lie in LIES.values()} == {
        "brokers", "controller", "publishers", "subscribers",
    }  # fmt: skip
