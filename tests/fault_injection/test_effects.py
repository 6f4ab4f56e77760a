"""Tests of effects: a fault is seen once all ends show exactly the effect of the fault."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from fault_injection.apply.evidence import End, find_observer
from fault_injection.apply.interface import Fault
from fault_injection.schedule.targets import read_target
from tests.fault_injection.test_deployed import TOPOLOGY

COUNTERS = dict.fromkeys(
    (
        *("absorbed_messages", "absorbed_publications", "absorbed_bytes", "dropped_frames"),
        *("forwarded_since_applied", "limited_messages", "sessions_down"),
    ),
    0,
)


@dataclass
class FakeEnd:
    """An end of a fault, with the replies of broker and agent."""

    broker: str
    answers: Mapping[str, Any]
    peer: str = ""
    fault_id: str = "f"
    across: Sequence[str] = ()
    inside: Sequence[str] = ()
    look: Mapping[str, Any] = field(default_factory=dict)

    @property
    def agent(self) -> "FakeEnd":
        return self

    async def command(self, name: str, arguments: Any = None) -> Any:
        answer = self.answers[name]
        if name != "probe":
            return answer
        missing = [peer for peer in arguments["peers"] if peer in answer["missing"]]
        reached = [peer for peer in arguments["peers"] if peer not in missing]
        return {"reached": reached, **answer, "missing": missing}

    async def fault_look(self, _: str) -> Any:
        return self.look


def seen(verb: str, *ends: FakeEnd, on: str = "c1-c2", **parameters: Any) -> bool:
    fault = Fault("f", verb, read_target(on, TOPOLOGY, verb, {}), parameters=parameters)
    return trio.run(find_observer(verb), fault, ends) is not None


def counting(broker: str, **counts: int) -> FakeEnd:
    return FakeEnd(broker, {"fault_counters": {"f": {**COUNTERS, **counts}}})


def probing(broker: str, peer: str, took_us: int | None) -> FakeEnd:
    """Return an end of a delayed link with this connect time; None if connects fail."""
    reached = [] if took_us is None else [peer]
    probe = {"reached": reached, "missing": [], "took_us": dict.fromkeys(reached, took_us)}
    return FakeEnd(broker, {"probe": probe}, peer=peer)


@pytest.mark.parametrize(
    "near_us, far_us, is_seen",
    [
        (50_000, 50_000, True), (50_000, 49_999, False), (49_999, 50_000, False),
        (None, 50_000, False), (50_000, None, False), (None, None, False),
    ],
)  # fmt: skip
def test_a_delay_is_seen_when_connects_of_both_ends_take_that_long(
    near_us: int | None, far_us: int | None, is_seen: bool
) -> None:
    ends = probing("c1", "c2", near_us), probing("c2", "c1", far_us)
    assert seen("delay", *ends, delay_ms=50) == is_seen


@pytest.mark.parametrize(
    "missing, is_seen",
    [
        (("c2", "c3"), True), (("c3", "c2"), True), (("c2",), False), ((), False),
        (("c2", "c3", "c4"), False), (("c2", "c4"), False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("turn", [0, 1])
def test_a_partition_is_seen_when_just_those_across_are_missing(
    missing: Sequence[str], is_seen: bool, turn: int
) -> None:
    """The broker beside must be reachable at both ends; otherwise the partition is different."""
    right = FakeEnd("c4", {"probe": {"missing": ["c2", "c3"]}}, across=("c2", "c3"), inside=("c1",))
    tried = FakeEnd("c1", {"probe": {"missing": [*missing]}}, across=("c2", "c3"), inside=("c4",))
    ends = (right, tried)[:: 1 if turn else -1]
    assert seen("partition", *ends, on="c1|c2,c3") == is_seen


@pytest.mark.parametrize(
    "near, far, is_seen", [(["c2"], ["c1"], True), ([], ["c1"], False), (["c2"], [], False)]
)
def test_a_black_hole_of_sessions_that_last_is_seen_by_probes_of_both_ends(
    near: list[str], far: list[str], is_seen: bool
) -> None:
    """No frame is dropped, and no session ends, before the failure detector ends the session."""
    ends = counting("c1"), counting("c2")
    for end, peer, missing in zip(ends, ("c2", "c1"), (near, far), strict=True):
        end.peer, end.answers = peer, {**end.answers, "probe": {"missing": missing}}
    assert seen("blackhole", *ends) == is_seen


@pytest.mark.parametrize("verb", ["absorb", "bandwidth"])
def test_a_fault_without_any_count_is_not_seen(verb: str) -> None:
    assert not seen(verb, counting("c1"), counting("c2"))


@pytest.mark.parametrize("verb", ["absorb", "blackhole", "bandwidth"])
def test_an_end_that_lacks_the_fault_shows_no_effect(verb: str) -> None:
    counts = {"absorbed_messages": 3, "dropped_frames": 3, "limited_messages": 3}
    has, lacks = counting("c1", **counts), FakeEnd("c2", {"fault_counters": {}})
    other = FakeEnd("c2", {"fault_counters": {"another": {**COUNTERS, **counts}}})
    assert seen(verb, has, counting("c2"))
    assert not seen(verb, has, lacks)
    assert not seen(verb, lacks, has)
    assert not seen(verb, has, other)


def test_an_absorb_that_lets_something_out_at_either_end_is_not_seen() -> None:
    holds, leaks = counting("c1", absorbed_messages=3), counting("c2", forwarded_since_applied=1)
    assert seen("absorb", holds, counting("c2"))
    assert not seen("absorb", holds, leaks)
    assert not seen("absorb", leaks, holds)


@pytest.mark.parametrize(
    "look, is_seen",
    [
        ({"stopped_samples": 5, "samples": 10}, True), ({"stopped_samples": 1, "samples": 2}, True),
        ({"stopped_samples": 0, "samples": 10}, False), ({}, False),
        ({"stopped_samples": 10, "samples": 10}, False),
    ],
)  # fmt: skip
def test_a_share_of_the_cpu_is_seen_when_the_process_stops_and_runs(
    look: Mapping[str, int], is_seen: bool
) -> None:
    assert seen("cpu-share", FakeEnd("c1", {}, look=look), on="c1") == is_seen


@pytest.mark.parametrize("took_us, is_seen", [(19_999, False), (20_000, True)])
def test_a_slow_disk_is_seen_when_a_write_takes_that_long(took_us: int, is_seen: bool) -> None:
    end = FakeEnd("c1", {"probe_disk": {"written": True, "took_us": took_us}})
    assert seen("slow-fsync", end, on="c1", delay_ms=20) == is_seen


@pytest.mark.parametrize(
    "peer, is_one_of_many, wanted",
    [("", False, "f1"), ("b2", False, "f1@b1"), ("", True, "f1@b1"), ("b2", True, "f1@b1")],
)
def test_each_of_several_ends_of_a_fault_has_a_name_of_its_own(
    peer: str, is_one_of_many: bool, wanted: str
) -> None:
    place = SimpleNamespace(host="h1", process="b1")
    deployment: Any = SimpleNamespace(brokers={"b1": place}, agents={"h1": None})
    fault: Any = SimpleNamespace(fault_id="f1")
    end = End(deployment, fault, "b1", peer, is_one_of_many=is_one_of_many)
    assert end.fault_id == wanted
