"""Tests of slow load generators, which the controller awaits, and of ended ones."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from bench.load.load_control import LoadControl
from bench.load.load_plan import LoadProcess
from bench.run.testbed import RunFailed
from brokerd.errors import ControlError

Answer = Callable[[], dict[str, Any]]


class Said:
    """A display that records messages."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.numbers: list[dict[str, Any]] = []

    def phase(self, name: str, expected_s: float | None = None) -> None:
        pass

    def update(self, numbers: dict[str, Any]) -> None:
        self.numbers.append(dict(numbers))

    def print(self, text: str) -> None:
        self.lines.append(text)


class SlowTestbed:
    """Two brokers, and load generators that take `takes_s` for every command."""

    def __init__(self, takes_s: float, answer: Answer) -> None:
        self.brokers = ("b1", "b2")
        self.asked: list[str] = []
        self._takes_s = takes_s
        self._answer = answer

    async def load_command(
        self, process: str, command: str, timeout_ms: int = 10_000, **arguments: Any
    ) -> dict[str, Any]:
        self.asked.append(command)
        with trio.move_on_after(timeout_ms / 1000):
            await trio.sleep(self._takes_s)
            return self._answer()
        raise ControlError("busy", f"{process} did not answer {command} within {timeout_ms} ms")


def control(testbed: SlowTestbed, said: Said) -> LoadControl:
    process = LoadProcess("load-sub", "subscriber", "load", {}, subscribers=["s1", "s2", "s3"])  # type: ignore[list-item]
    return LoadControl(testbed, [process], said)  # type: ignore[arg-type]


def in_no_time(work: Callable[[], Any]) -> Any:
    return trio.run(work, clock=MockClock(autojump_threshold=0))


def test_a_late_reply_is_awaited_and_its_sender_is_named() -> None:
    said = Said()
    load = control(SlowTestbed(35, lambda: {"now_ns": 7}), said)
    assert in_no_time(load.now_ns) == 7
    assert said.lines == [
        f"load-sub has not answered status for {waited} s; it is waited for"
        for waited in (10, 20, 30)
    ]


def test_a_reply_that_is_late_by_minutes_is_an_error() -> None:
    load = control(SlowTestbed(10_000, dict), Said())
    with pytest.raises(ControlError, match="load-sub did not answer status within 300000 ms"):
        in_no_time(load.now_ns)


def test_a_process_that_has_ended_is_not_waited_for() -> None:
    def ended() -> dict[str, Any]:
        raise ControlError("user", "load-sub is not running (exited)")

    said = Said()
    with pytest.raises(ControlError, match="load-sub is not running"):
        in_no_time(control(SlowTestbed(0, ended), said).now_ns)
    assert said.lines == []


def test_subscribe_reports_the_number_of_started_subscriptions() -> None:
    left = [["s1", "s2", "s3"], ["s2"], []]
    said = Said()
    bed = SlowTestbed(12, lambda: {"not_started": left[max(0, bed.asked.count("status") - 1)]})
    in_no_time(control(bed, said).subscribe)
    assert said.numbers == [{"started": "0/3"}, {"started": "2/3"}, {"started": "3/3"}]
    assert bed.asked == ["subscribe", "status", "status", "status"]


def test_the_start_timeout_grows_with_brokers_and_clients() -> None:
    load = control(SlowTestbed(1, lambda: {"not_started": ["s1"]}), Said())
    with pytest.raises(RunFailed, match=r"waited 61.15 s for s1 to start their subscriptions"):
        in_no_time(load.subscribe)


def test_the_wait_for_clients_that_cannot_attach_reports_the_reason() -> None:
    said = Said()
    status = {"not_attached": ["s1", "s2"], "attach_failure": "certificate has expired"}
    with pytest.raises(
        RunFailed, match=r"waited 31.15 s for s1, s2 to attach \(certificate has exp"
    ):
        in_no_time(control(SlowTestbed(1, lambda: status), said).attach)
    assert said.lines[0] == "waiting for s1, s2 to attach (certificate has expired)"


def test_a_failed_client_ends_the_wait_before_the_load() -> None:
    said = Said()
    status = {"not_started": ["s1"], "problems": ["s1: ValueError: no such thing (1 times)"]}
    with pytest.raises(RunFailed, match=r"^s1: ValueError: no such thing$"):
        in_no_time(control(SlowTestbed(1, lambda: status), said).subscribe)
    assert said.lines == []


def test_a_process_that_ends_before_it_is_up_is_quoted() -> None:
    class Agent:
        async def start(self, *arguments: Any) -> None:
            pass

        async def tail(self, process: str, after: dict[str, int], **more: Any) -> dict[str, Any]:
            said = b"Traceback:\n  line 7\nKeyError: 'driver'\n"
            return {"files": [{"name": "stderr.log", "data": said}]}

    def ended() -> dict[str, Any]:
        raise ControlError("user", "load-sub is not running (exited)")

    bed = SlowTestbed(0, ended)
    bed.clients_agent = Agent()  # type: ignore[attr-defined]
    load = control(bed, Said())
    load.processes[0].config["control_socket"] = "s"
    with pytest.raises(RunFailed, match=r"^load generator load-sub has ended: KeyError: 'driver'$"):
        in_no_time(lambda: load.start(None, ""))
