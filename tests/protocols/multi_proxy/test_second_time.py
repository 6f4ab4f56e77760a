"""The wait for a server that has answered equals the wait for a new server."""

from typing import Any

import pytest

from brokerd.protocols.interface import Send
from brokerd.protocols.multi_proxy.messages import Follow
from brokerd.protocols.multi_proxy.parameters import MultiProxyParameters
from brokerd.protocols.multi_proxy.routes import UNANSWERED, ServerRoutes
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine

HOME, SERVER, PROXIES = 5, 2, (0, 1)
TIMEOUT_NS, LIMIT_NS = 100, 1_500


class Asking:
    """An access broker that follows one topic of one server, over two proxies."""

    def __init__(self) -> None:
        self.machine = EventMachine()
        self.deadlines: DeadlineQueue[Any] = DeadlineQueue()
        self.is_awaited = False
        self.ways = ServerRoutes(
            HOME,
            self.machine,
            PROXIES,
            (SERVER,),
            self.deadlines,
            MultiProxyParameters(timeout_ns=TIMEOUT_NS, retry_limit_ns=LIMIT_NS),
        )
        for proxy in PROXIES:
            for _ in self.ways.reaches(proxy, (SERVER,)):
                self._send()

    def _send(self) -> None:
        if self.is_awaited:
            self.ways.send(Follow(SERVER, HOME, 1, 1, (1,)))

    def request(self) -> None:
        self.is_awaited = True
        self._send()

    def due(self) -> None:
        if self.ways.change_late(SERVER, is_awaited=self.is_awaited, puts_ns=None):
            self._send()

    def answer(self) -> None:
        self.is_awaited = False
        self.ways.on_answer(SERVER, Follow)

    def waits(self, count: int) -> list[tuple[int, int]]:
        """Return the next `count` waits for answers, with their proxies."""
        found = []
        for _ in range(count):
            (proxy,) = [effect.peer for effect in self.machine.effects[-1:] if type(effect) is Send]
            began_ns = self.machine.now_ns
            before = len(self.machine.effects)
            while len(self.machine.effects) == before:
                due_ns = self.deadlines.earliest()
                assert due_ns is not None, "a request without an answer is never repeated"
                self.machine.now_ns = due_ns
                assert self.deadlines.due(due_ns) == [(UNANSWERED, SERVER)]
                self.due()
            found.append((self.machine.now_ns - began_ns, proxy))
        return found


@pytest.mark.parametrize("silences", [(0,), (1,), (2,), (7,), (1, 4), (7, 2, 5)], ids=str)
def test_after_an_answer_the_waits_are_those_of_a_new_one(silences: tuple[int, ...]) -> None:
    asking = Asking()
    asking.request()
    for silence in silences:
        asking.waits(silence)
        asking.answer()
        asking.request()
    found = asking.waits(6)
    assert [wait_ns for wait_ns, _ in found] == [100, 200, 300, 500, 900, 1_600]
    proxies = [proxy for _, proxy in found]
    assert proxies in ([0, 1] * 3, [1, 0] * 3)


def test_a_wait_that_an_answer_has_ended_is_no_silence() -> None:
    """Answers arrive in time, with pauses without requests."""
    asking = Asking()
    for _ in range(5):
        asking.request()
        asking.machine.now_ns += TIMEOUT_NS - 1
        asking.answer()
        asking.machine.now_ns += 10 * TIMEOUT_NS
        before = len(asking.machine.effects)
        while (due_ns := asking.deadlines.earliest()) is not None:
            assert due_ns <= asking.machine.now_ns
            asking.deadlines.due(due_ns)
            asking.due()
        assert len(asking.machine.effects) == before, "nothing is repeated"
    asking.request()
    assert asking.waits(1)[0][0] == TIMEOUT_NS
