"""Stories of requests for the owners of topics, and of the actions that wait for owners."""

from types import SimpleNamespace
from typing import Any

from brokerd.protocols.multi_proxy.messages import Locate, Owner
from brokerd.protocols.multi_proxy.owners import OwnerRequests

HOME, ARBITERS = 1, (10, 11, 10)


class Requests:
    """The requests of an access broker; two servers are arbiters of three topics."""

    def __init__(self) -> None:
        self.sent: list[Locate] = []
        self.used: list[int] = []
        self.table = SimpleNamespace(known={})
        table: Any = self.table
        routes: Any = SimpleNamespace(send=self.sent.append)
        publishes: Any = SimpleNamespace(on_owners=self.used.extend)
        self.found = OwnerRequests(HOME, ARBITERS, table, routes, publishes)


def test_a_topic_is_requested_once_from_its_own_arbiter() -> None:
    story = Requests()
    story.found.seek((0, 1, 2))
    assert story.sent == [Locate(10, HOME, (0, 2)), Locate(11, HOME, (1,))]
    story.found.seek((0, 1, 2))
    assert len(story.sent) == 2
    story.found.add((Owner(0, 7, 1),))
    story.found.seek((0,))
    assert len(story.sent) == 2, "its owner is known"
    story.found.resend(10)
    assert story.sent[2:] == [Locate(10, HOME, (2,))]


def test_an_owner_from_before_a_crash_answers_the_request_of_an_earlier_row() -> None:
    story, done = Requests(), list[str]()
    assert story.found.wait((0, 2), lambda: done.append("both")) == [0, 2]
    story.found.seek((0, 2))
    story.found.remember((Owner(0, 7, 1), Owner(1, 8, 1)))
    assert story.table.known == {0: 7, 1: 8}
    assert (story.used, done, story.found.list_awaited()) == ([0], [], (0, 2))
    assert story.found.awaits(10)
    story.found.remember((Owner(2, 7, 1),))
    assert (story.used, done) == ([0, 2], ["both"])
    assert not story.found.awaits(10)
    assert story.found.wait((1,), lambda: done.append("known")) == []
    assert done == ["both", "known"]
