"""Tests of a run at its brokers: it begins again at a restarted broker, and ends once at each."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from bench.run.coordinator import _Experiment
from brokerd.errors import ControlError


class Brokers:
    """Brokers under test that record when a run begins and ends."""

    def __init__(self, loses: str = "", is_down: str = "") -> None:
        self.acts: list[str] = []
        self._loses = loses
        self._is_down = is_down

    async def begin_run(self, testbed: object, broker: str, run_id: str) -> dict[str, str]:
        self.acts.append(f"begin {run_id} {broker}")
        return {"cause": "disk"} if broker == self._loses else {}

    async def end_run(self, testbed: object, broker: str) -> dict[str, str]:
        self.acts.append(f"end {broker}")
        if broker == self._is_down:
            raise ControlError("closed", f"{broker} is down")
        return {"events.jsonl": broker}


@pytest.mark.parametrize("is_down", ["", "b1", "b2"])
@pytest.mark.parametrize("loses", ["", "b2"])
def test_a_run_ends_once_at_each_broker_however_often_it_began(loses: str, is_down: str) -> None:
    brokers, lines = Brokers(loses, is_down), list[tuple[str, dict[str, Any]]]()
    run: Any = SimpleNamespace(
        _under_test=brokers,
        _testbed=SimpleNamespace(
            brokers={name: SimpleNamespace(process=f"broker-{name}") for name in ("b1", "b2")}
        ),
        _run_id="r1",
        _begun=[],
        _directory=SimpleNamespace(log=lambda event, **about: lines.append((event, about))),
    )
    run._log_closed = lambda *about: _Experiment._log_closed(run, *about)

    async def play() -> None:
        for broker in ("b1", "b2", "b1", "b2", "b1"):  # restarted once, and twice
            await _Experiment._begin_run_at(run, broker)
        await _Experiment._end_run_at_brokers(run)

    trio.run(play)
    assert brokers.acts == [
        *(f"begin r1 {broker}" for broker in ("b1", "b2", "b1", "b2", "b1")),
        *("end b1", "end b2"),
    ]
    lost = [about for event, about in lines if event == "loss_accepted"]
    assert lost == 2 * [{"broker": "b2", "cause": "disk"}] * bool(loses)
    closed = [about for event, about in lines if event == "closed"]
    assert closed == [
        {"process": f"broker-{name}", "digests": {"events.jsonl": name}}
        for name in ("b1", "b2")
        if name != is_down
    ]
