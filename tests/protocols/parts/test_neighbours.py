"""A neighbour is dialled after any episode as if it were new."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from brokerd.model.identity import Peer
from brokerd.protocols.interface import OpenSession, SessionEstablished, SessionLost
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.neighbours import RETRY, NeighbourSessions

PEER, OTHER = 1, 2
ATTEMPTS = 5


@dataclass(frozen=True)
class Waits:
    retry_first_ns: int = 5
    retry_limit_ns: int = 30


class Broker:
    """A broker with two neighbours."""

    def __init__(self) -> None:
        self.deadlines: DeadlineQueue[tuple[str, Peer]] = DeadlineQueue()
        self.sessions = NeighbourSessions((PEER, OTHER), Waits(), self.deadlines)
        self.number = 0

    def fail(self, times: int) -> list[int | None]:
        """Fail to open a session; return the time of the next attempt after each failure."""
        waits = []
        for _ in range(times):
            self.sessions.on_open_failed(PEER, 0)
            waits.append(self.deadlines.instant((RETRY, PEER)))
        return waits

    def open(self) -> Any:
        self.number += 1
        return self.sessions.on_established(PEER, SessionEstablished(PEER, self.number, 1))

    def lose(self) -> bool:
        return self.sessions.on_lost(PEER, SessionLost(PEER, self.number, "closed_by_peer"), 0)

    def leave(self) -> list[Any]:
        return self.sessions.change((OTHER,))

    def come_back(self) -> list[Any]:
        return self.sessions.change((PEER, OTHER))


def connected(broker: Broker) -> None:
    assert broker.open() is None
    assert broker.lose()


def out_of_reach(broker: Broker) -> None:
    broker.fail(ATTEMPTS)
    connected(broker)


def left_out_of_reach(broker: Broker) -> None:
    broker.fail(ATTEMPTS)
    broker.leave()
    assert not broker.fail(1)[0], "no neighbour is dialled"
    assert broker.come_back() == [OpenSession(PEER)]


def left_with_a_session(broker: Broker) -> None:
    broker.fail(ATTEMPTS)
    broker.open()
    broker.leave()
    assert not broker.lose()
    assert (RETRY, PEER) not in broker.deadlines
    broker.come_back()


@pytest.mark.parametrize(
    "episode", [connected, out_of_reach, left_out_of_reach, left_with_a_session]
)
@pytest.mark.parametrize("times", [1, 2])
def test_a_neighbour_after_an_episode_is_dialled_as_a_new_one(
    episode: Callable[[Broker], None], times: int
) -> None:
    new, broker = Broker(), Broker()
    for _ in range(times):
        episode(broker)
    assert broker.fail(ATTEMPTS) == new.fail(ATTEMPTS) == [5, 10, 20, 30, 30]


def test_a_renewed_session_is_dialled_once_it_is_closed() -> None:
    broker = Broker()
    broker.open()
    assert broker.sessions.renew() == [PEER]
    assert not broker.sessions.current
    assert not broker.lose()
    assert broker.deadlines.instant((RETRY, PEER)) == 5
    connected(broker)


def test_a_session_with_no_neighbour_is_closed_and_not_current() -> None:
    broker = Broker()
    broker.leave()
    assert broker.open() is not None
    assert not broker.sessions.current
    assert not broker.lose()
    assert (RETRY, PEER) not in broker.deadlines
