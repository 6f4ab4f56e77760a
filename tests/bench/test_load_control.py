"""Tests of slow load generators, which the controller awaits, and of ended ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from bench.load.load_control import QUIET_S, DrainOutcome, LoadControl
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


# ---------------------------------------------------------------- fences, and the end


@dataclass
class Generators:
    """Two load generators as the testbed and its agent: facts hold from a time on.

    Attributes:
        fenced_s, settled_s: time from a fence to its publication, and to the last arrival.
        arriving_s: time from a fence during which publications arrive.
        refuses: commands and processes, such as "finish load-pub", that fail.
    """

    fenced_s: float = 1.0
    settled_s: float = 3.0
    arriving_s: float = 0.0
    refuses: tuple[str, ...] = ()
    problems: Sequence[str] = ()
    brokers: tuple[str, ...] = ("b1", "b2")
    asked: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    fences: list[int] = field(default_factory=list)
    began_s: float = 0.0

    @property
    def clients_agent(self) -> "Generators":
        return self

    async def stop(self, process: str) -> None:
        self.stopped.append(process)
        if f"stop {process}" in self.refuses:
            raise ControlError("busy", "no answer")

    async def load_command(
        self, process: str, command: str, timeout_ms: int = 0, **arguments: Any
    ) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        if command != "status":
            self.asked.append((process, command, arguments))
        if f"{command} {process}" in self.refuses:
            raise ControlError("user", f"{process} refuses")
        if command == "fence":
            self.fences.append(1 + 8 * len(self.fences))
            self.began_s = trio.current_time()
        if command == "publishers":
            name = {"identity": "b1/1", "incarnation": 4, "size_bytes": 8}
            return {"publishers": [{**name, "fences": [*self.fences]}]}
        if command == "finish":
            return {"of": process}
        return self._status(process)

    def _status(self, process: str) -> dict[str, Any]:
        passed_s = trio.current_time() - self.began_s
        is_open, is_pub = passed_s < self.settled_s, process == "load-pub"
        return {
            "not_fenced": ["p1"] * (is_pub and passed_s < self.fenced_s),
            "not_attached": [],
            "fences_missing": 2 * (is_open and not is_pub),
            "holes": 3 * (is_open and not is_pub),
            "open": 1 * (is_open and is_pub),
            "sent": 10 * is_pub,
            "delivered": 0 if is_pub else int(min(passed_s, self.arriving_s)),
            "backlog": 5,
            "problems": self.problems,
        }

    def control(self, said: Said) -> LoadControl:
        """Return the control of both load generators, which have started."""
        pub = LoadProcess("load-pub", "publisher", "load", {}, publishers=["p1"])  # type: ignore[list-item]
        sub = LoadProcess("load-sub", "subscriber", "load", {}, subscribers=["s1"])  # type: ignore[list-item]
        load = LoadControl(self, [pub, sub], said)  # type: ignore[arg-type]
        load.started = [pub, sub]
        return load


MISSING = "2 fences to arrive and 3 publications to arrive and 1 publications to be acknowledged"


def test_each_fence_is_published_then_expected_with_all_before_and_waited_for() -> None:
    bed, said = Generators(), Said()
    load = bed.control(said)

    async def play() -> None:
        for fences in ([1], [1, 9], [1, 9, 17]):
            bed.asked.clear()
            if len(fences) == 1:
                await load.open(30)
            else:
                assert await load.close(30, 300) == DrainOutcome("evidence", "")
            passed_s = trio.current_time() - bed.began_s
            assert bed.settled_s <= passed_s < bed.settled_s + 1
            expected = [
                {"publisher": "b1/1", "incarnation": 4, "sequence": sequence} for sequence in fences
            ]
            assert bed.asked == [
                ("load-pub", "fence", {}),
                ("load-pub", "publishers", {}),
                ("load-sub", "expect_fences", {"fences": expected}),
            ]

    in_no_time(play)
    assert said.numbers[-1] == {"sent": 10, "delivered": 0, "backlog": 10}


@pytest.mark.parametrize(
    "facts, ended_by, waiting_for, ended_s",
    [
        ({"settled_s": 5}, "evidence", "", 5),
        ({"settled_s": 99}, "silence", MISSING, 6),
        ({"settled_s": 99, "arriving_s": 8}, "silence", MISSING, 8 + QUIET_S),
        ({"settled_s": 99, "arriving_s": 99}, "bound", MISSING, 20),
        ({"settled_s": 12, "arriving_s": 9}, "evidence", "", 12),
        ({"settled_s": 1, "fenced_s": 99}, "silence", "p1 to publish a closing fence", 6),
    ],
)
def test_a_drain_goes_on_while_anything_arrives_and_says_what_ended_it(
    facts: dict[str, float], ended_by: Any, waiting_for: str, ended_s: float
) -> None:
    load = Generators(**facts, problems=("s1: too late (1 times)",)).control(Said())  # type: ignore[arg-type]

    async def play() -> None:
        assert await load.close(6, 20) == DrainOutcome(ended_by, waiting_for)
        assert ended_s <= trio.current_time() < ended_s + QUIET_S + 1

    in_no_time(play)


@pytest.mark.parametrize(
    "facts, reason",
    [
        ({"settled_s": 99}, f"waited 4.1 s for {MISSING}"),
        ({"settled_s": 99, "arriving_s": 99}, f"waited 4.1 s for {MISSING}"),
        ({"fenced_s": 99}, "waited 4.1 s for p1 to publish a opening fence"),
        ({"problems": ["s1: no such broker (1 times)"]}, "s1: no such broker"),
    ],
)
def test_a_run_fails_if_its_first_fences_do_not_arrive(facts: dict[str, Any], reason: str) -> None:
    load = Generators(**facts).control(Said())
    with pytest.raises(RunFailed) as failed:
        in_no_time(lambda: load.open(3))
    assert str(failed.value) == reason


def test_attached_clients_know_all_publishers() -> None:
    bed = Generators()
    in_no_time(bed.control(Said()).attach)
    publisher = {"identity": "b1/1", "incarnation": 4, "size_bytes": 8, "fences": []}
    assert bed.asked == [
        ("load-pub", "connect", {}),
        ("load-sub", "connect", {}),
        ("load-pub", "publishers", {}),
        ("load-sub", "know_publishers", {"publishers": [publisher]}),
    ]


@pytest.mark.parametrize(
    "refuses", [(), ("finish load-pub",), ("stop load-sub",), ("finish load-sub", "stop load-pub")]
)
def test_each_load_generator_is_stopped_whatever_fails_before(refuses: tuple[str, ...]) -> None:
    bed = Generators(refuses=refuses)
    load = bed.control(Said())
    problems = in_no_time(load.finish)
    assert sorted(bed.stopped) == ["load-pub", "load-sub"]
    assert load.finished == {
        name: {"of": name} for name in ("load-pub", "load-sub") if f"finish {name}" not in refuses
    }
    words = {"finish": "could not end in order", "stop": "could not be stopped"}
    expected = [(name, words[act]) for act, name in (each.split() for each in refuses)]
    assert len(problems) == len(expected)
    for name, word in expected:
        assert any(text.startswith(f"load generator {name} {word}: ") for text in problems)
