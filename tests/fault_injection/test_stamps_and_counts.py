"""Tests of the fault log: times, counts, and writes to disk before later acts."""

import json
from contextlib import closing
from itertools import permutations
from pathlib import Path

import pytest
import trio

from fault_injection.apply.interface import Evidence, Fault
from fault_injection.apply.log import FaultLog, Stage
from fault_injection.schedule.plan import expand
from fault_injection.schedule.targets import check_nft_can_separate
from tests.fault_injection.test_injector import MadeUpBackend, play, stages
from tests.fault_injection.test_schedule import ABSORB, read, step


def planned(folder: Path | None = None) -> FaultLog:
    log = FaultLog(folder)
    log.plan(expand(read(ABSORB)), "")
    return log


def test_a_fault_holds_from_when_it_was_applied_though_the_answer_is_late() -> None:
    class Slow(MadeUpBackend):
        async def apply(self, fault: Fault, lease_ns: int) -> Evidence:
            evidence = await super().apply(fault, lease_ns)
            await trio.sleep(2)
            return evidence

    _, lines = play(step(id="c", at="3s", do="cut", on="b3-s3", for_="9s"), Slow())
    assert stages(lines, "c")["applied"] == pytest.approx(3, abs=0.01)


def test_repeated_observations_are_not_summed() -> None:
    log = planned()
    log.note("a", "observed", 5, {"absorbed_publications": 7, "absorbed_bytes": 70})
    log.learn("a", {"absorbed_publications": 9, "absorbed_bytes": 90})
    log.learn("a", {"absorbed_publications": 8})
    (row,) = log.rows()
    assert (row["absorbed_msgs"], row["absorbed_bytes"]) == (9, 90)


@pytest.mark.parametrize("known", ["", "absorbed_publications", "absorbed_bytes"])
def test_the_log_ends_with_what_was_absorbed_if_anything_is_known(
    known: str, tmp_path: Path
) -> None:
    with closing(planned(tmp_path)) as log:
        log.note("a", "observed", 5, {known: 7} if known else {})
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    nothing: dict[str, int | None] = {"absorbed_publications": None, "absorbed_bytes": None}
    ends = [{"stage": "learned", "evidence": {**nothing, known: 7}}] if known else []
    last = [{key: line[key] for key in ("stage", "evidence")} for line in lines[1:]]
    assert last == ends


def test_each_line_is_announced_once_it_is_recorded() -> None:
    shown: list[str] = []
    log = FaultLog(announce=lambda line: shown.append(str(line["stage"])))
    log.plan(expand(read(ABSORB)), "")
    for place, stage in enumerate(("requested", "applied", "failed")):
        log.note("a", stage, place)
        assert shown == [str(line["stage"]) for line in log.lines]
    assert shown == ["requested", "applied", "failed"]


@pytest.mark.parametrize("order", [*permutations(("applied", "observed", "healed"))])
def test_a_fault_has_its_farthest_stage_in_whatever_order_stages_are_noted(
    order: tuple[Stage, ...],
) -> None:
    log = planned()
    for number in range(len(order)):
        log.note("a", order[number], 5 + number)
        (row,) = log.rows()
        assert row["state"] == max(order[: number + 1], key=["applied", "observed", "healed"].index)
        assert row[f"t_{order[number]}_ns"] == 5 + number


def test_a_line_can_be_read_before_the_next_step_ends(tmp_path: Path) -> None:
    with closing(planned(tmp_path)) as log:
        log.note("a", "requested", 5)
        (line,) = (tmp_path / "log.jsonl").read_text().splitlines()
        assert json.loads(line)["stage"] == "requested"


def test_nft_parts_two_brokers_unless_a_third_at_their_address_would_be_parted_too() -> None:
    addresses = {"x": "10.0.0.1:1", "y": "10.0.0.1:2", "z": "10.0.0.2:1"}
    near = {"x": ["z"], "y": [], "z": ["x"]}
    check_nft_can_separate([("x", "z")], addresses, near.__getitem__)
    near = {"x": ["z"], "y": ["z"], "z": ["x", "y"]}
    around = {"a": ["x", "y"], "x": ["a"], "y": ["a"], "z": []}
    with pytest.raises(ValueError, match="nft cannot separate y from x"):
        check_nft_can_separate([("x", "z")], addresses, near.__getitem__)
    with pytest.raises(ValueError, match="nft cannot separate"):
        # The broker that shares an address is the second of the pair.
        check_nft_can_separate([("a", "x")], {**addresses, "a": "10.0.0.9:1"}, around.__getitem__)
    check_nft_can_separate([("x", "z"), ("z", "y")], addresses, near.__getitem__)


@pytest.mark.parametrize("same_host", [True, False])
@pytest.mark.parametrize("linked", [True, False])
@pytest.mark.parametrize("pairs", [[("x", "z")], [("z", "x")], [("x", "z"), ("y", "z")]])
def test_nft_parts_what_differs_in_address_or_has_no_link(
    pairs: list[tuple[str, str]], *, linked: bool, same_host: bool
) -> None:
    addresses = {"x": "10.0.0.1:1", "y": "10.0.0.1:2" if same_host else "10.0.0.3:2"}
    addresses["z"] = "10.0.0.2:1"
    near = {"x": ["z"], "y": ["z"] * linked, "z": ["x", *["y"] * linked]}
    if same_host and linked and len(pairs) == 1:
        with pytest.raises(ValueError, match="nft cannot separate y from x: both have the address"):
            check_nft_can_separate(pairs, addresses, near.__getitem__)
    else:
        check_nft_can_separate(pairs, addresses, near.__getitem__)
    alone = {"x": "10.0.0.1:1", "z": "10.0.0.1:2"}
    check_nft_can_separate([("x", "z")], alone, {"x": ["z"], "z": ["x"]}.__getitem__)
