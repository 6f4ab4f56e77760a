"""A request after a past silence is repeated as soon as the very first request.

The wait for a silent storage doubles. After an answer of the storage, the next wait has the initial
length again.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import pytest

from brokerd.model.predicate import EVERYTHING
from brokerd.protocols.ges_reliable.fetches import EpochFetches
from brokerd.protocols.ges_reliable.messages import (
    Change,
    Changed,
    Fetch,
    Fetched,
    Key,
    RequestAnswer,
    Stored,
    SubscriptionRequest,
)
from brokerd.protocols.ges_reliable.parameters import GesReliableParameters
from brokerd.protocols.ges_reliable.requests import PublishRequests, SubscriptionRequests
from brokerd.protocols.ges_reliable.state import StoredSubscription
from brokerd.protocols.parts.deadlines import DeadlineQueue
from tests.protocols.ges_reliable.test_parts import HOME, Paper, S, run

PARAMETERS = GesReliableParameters(
    timeout_ns=100, retry_limit_ns=1_500, fetch_wait_ns=0, receipt_interval_ns=10**12
)
SOURCE = run(1, 1).source


class Asker(Protocol):
    """A part that sends requests to a storage and repeats them while the storage is silent."""

    now_ns: int
    deadlines: DeadlineQueue[Any]
    paper: Paper

    def request(self) -> None:
        """Start an operation that needs an answer."""

    def answer(self, *, wholly: bool) -> None:
        """Let the storage answer the last request; if not `wholly`, with a part where possible."""

    def due(self) -> None:
        """Let the time of a repetition arrive."""


class Putting:
    """The publications of a publisher."""

    def __init__(self) -> None:
        self.now_ns, self.paper = 0, Paper()
        self.deadlines: DeadlineQueue[Any] = DeadlineQueue()
        self.publishes = PublishRequests(HOME, self.deadlines, PARAMETERS, self.paper, S)
        assert not [*self.publishes.add_source(SOURCE, 0, 0, self.now_ns, continues=False)]
        self.sent = 0

    def request(self) -> None:
        self.sent += 2
        self.paper.sent += self.publishes.add(run(self.sent - 1, self.sent), self.now_ns)

    def answer(self, *, wholly: bool) -> None:
        through = self.sent - (not wholly)
        assert self.publishes.on_stored(Stored(HOME, 0, S, SOURCE, through), self.now_ns)

    def due(self) -> None:
        self.paper.sent += self.publishes.due(self.now_ns)


class Registering:
    """The subscriptions of clients."""

    def __init__(self) -> None:
        self.now_ns, self.paper = 0, Paper()
        self.deadlines: DeadlineQueue[Any] = DeadlineQueue()
        self.requests = SubscriptionRequests(HOME, self.deadlines, PARAMETERS, self.paper)
        self.requests.start(1)
        self.last: Change | None = None

    def request(self) -> None:
        wish = SubscriptionRequest(Key("c", 1), 1, EVERYTHING)
        self.paper.sent += self.requests.add(S, wish, None, self.now_ns)

    def answer(self, *, wholly: bool) -> None:
        asked = [each for each in self.paper.sent if type(each) is Change][-1]
        begun = tuple(RequestAnswer(wish.key, 0) for wish in asked.requests)
        about = asked.incarnation, asked.number
        message = Changed(HOME, 0, S, *about, begun, False)
        self.paper.sent += self.requests.on_changed(S, message, self.now_ns)

    def due(self) -> None:
        self.paper.sent += self.requests.due(S, self.now_ns)


class Fetching:
    """The epochs that an access broker follows; every answer starts the next request."""

    def __init__(self) -> None:
        self.now_ns, self.paper = 0, Paper()
        self.deadlines: DeadlineQueue[Any] = DeadlineQueue()
        self.fetches = EpochFetches(HOME, self.deadlines, PARAMETERS, self.paper)
        self.fetches.start(1)
        local = StoredSubscription("c", 1, EVERYTHING)
        local.storage, local.generation = S, 1
        self.paper.send(self.fetches.begin(local, 0, self.now_ns))

    def request(self) -> None:
        """Do nothing, because the answer has started the next request already."""

    def answer(self, *, wholly: bool) -> None:
        asked = [each for each in self.paper.sent if type(each) is Fetch][-1]
        about = asked.incarnation, asked.number
        message = Fetched(HOME, 0, S, *about, asked.after, asked.after)
        self.paper.sent += self.fetches.on_fetched(message, self.now_ns)

    def due(self) -> None:
        self.paper.sent += self.fetches.due(S, self.now_ns)


def waits(asker: Asker, count: int) -> list[int]:
    """Return the next `count` waits between repetitions while the storage is silent."""
    found = []
    for _ in range(count):
        due_ns = asker.deadlines.earliest()
        assert due_ns is not None, "a request without an answer is never repeated"
        found.append(due_ns - asker.now_ns)
        asker.now_ns = due_ns
        assert len(asker.deadlines.due(due_ns)) == 1
        before = len(asker.paper.sent)
        asker.due()
        assert len(asker.paper.sent) > before
    return found


@pytest.mark.parametrize("silences", [(0,), (1,), (3,), (7,), (1, 4), (7, 2, 5)], ids=str)
@pytest.mark.parametrize("wholly", [True, False])
@pytest.mark.parametrize("kind", [Putting, Registering, Fetching])
def test_after_an_answer_the_waits_are_those_of_a_new_one(
    kind: Callable[[], Asker], wholly: bool, silences: tuple[int, ...]
) -> None:
    asker = kind()
    asker.request()
    for silence in silences:
        waits(asker, silence)
        if wholly:
            asker.answer(wholly=True)
            asker.request()
        else:
            asker.request()
            asker.answer(wholly=False)
            if kind is Registering:
                asker.request()
    assert waits(asker, 6) == [100, 200, 400, 800, 1_500, 1_500]


def test_new_numbers_of_a_source_wait_for_the_report_of_its_storage() -> None:
    """A report of these numbers would otherwise look like a process with a later state."""
    paper, deadlines = Paper(), DeadlineQueue[Any]()
    publishes = PublishRequests(HOME, deadlines, PARAMETERS, paper, S)

    def numbers(sent: Iterable[Any]) -> list[range]:
        return [each.run.sequences for each in sent]

    assert numbers(publishes.add_source(SOURCE, 3, 4, 0, continues=True)) == [range(3, 4)]
    assert numbers(publishes.add(run(4, 4), 0)) == [range(4, 5)]
    assert numbers(publishes.add(run(5, 6), 0)) == []
    assert numbers(publishes.due(1)) == [range(3, 4), range(4, 5)]
    assert publishes.refuse_older_copy(Stored(HOME, 0, S, SOURCE, 4)) is None
    assert numbers(publishes.on_probed(SOURCE, 2)) == [range(5, 7)]
    assert publishes.refuse_older_copy(Stored(HOME, 0, S, SOURCE, 6)) is None
    assert publishes.on_stored(Stored(HOME, 0, S, SOURCE, 6), 3)
    assert not publishes.pending()
    assert deadlines.earliest() is None
