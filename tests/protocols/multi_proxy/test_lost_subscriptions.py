"""Subscriptions that an access broker lost with its disk, and that restart behind gaps."""

from collections.abc import Mapping
from itertools import product
from typing import Any

from brokerd.model.client_messages import Connect, Deliveries, Gap, Subscribe, Subscribed
from brokerd.model.identity import SourceId, StreamId
from brokerd.model.predicate_text import parse_predicate
from brokerd.model.publication import OriginRun, PublicationRun
from brokerd.protocols.interface import (
    Commit,
    Deliver,
    MessageReceived,
    Persisted,
    Send,
    SessionEstablished,
    SessionLost,
    Started,
)
from brokerd.protocols.multi_proxy.messages import Follow, Followed, Following, Messages, Servers
from brokerd.protocols.multi_proxy.parameters import RENDEZVOUS, MultiProxyParameters
from brokerd.protocols.registry import make_protocol
from brokerd.wire.attributes import decode_attribute_table, encode_attributes
from tests.helpers.proxy_stories import sides

PROXY, FIRST, SECOND, HOME = 0, 1, 2, 3
LINEAGE = 4_097
PREDICATE = parse_predicate("price > 0")


class LossyHome:
    """An access broker that lost its disk, and the client `s` with a started subscription.

    Args:
        rows: the broker's disk after a further crash.
        positions: the positions that the client states.
        states: whether the client states the subscription.
    """

    def __init__(
        self,
        rows: Mapping[str, dict[str, Any]] | None = None,
        positions: tuple[tuple[StreamId, int], ...] = (),
        *,
        states: bool = True,
    ) -> None:
        self.core = make_protocol(
            "multi_proxy",
            HOME,
            sides(proxies=1, servers=2, edges=1),
            MultiProxyParameters(ownership=RENDEZVOUS, topics=8, topic_attribute="kind"),
            decode_attribute_table,
        )
        self.disk: dict[str, dict[str, Any]] = {name: {**row} for name, row in (rows or {}).items()}
        self.said: list[Any] = []
        self.got: list[Any] = []
        self.held: list[Commit] | None = None
        self.incarnation = LINEAGE + (rows is not None)
        self.do(Started(self.incarnation, rows is not None, self.disk, lineage=1))
        self.do(SessionEstablished(PROXY, 7, 1))
        self.do(MessageReceived(PROXY, 7, Servers((FIRST, SECOND))))
        self.answer(FIRST, 0)
        self.answer(SECOND, 0)
        self.do(SessionEstablished("s", 8, 1))
        resume = ((1, positions),) if states else ()
        self.do(MessageReceived("s", 8, Connect(False, 1, 1, 0, resume)))
        self.do(MessageReceived("s", 8, Subscribe(1, PREDICATE)))

    def do(self, event: Any) -> None:
        """Handle an event; all commits are durable at once, unless they are held."""
        for effect in self.core.handle(event, 0):
            if isinstance(effect, Send):
                self.said.append(effect.message)
            elif isinstance(effect, Deliver):
                self.got.append(effect.item)
            elif isinstance(effect, Commit) and self.held is not None:
                self.held.append(effect)
            elif isinstance(effect, Commit):
                for change in effect.changes:
                    table = self.disk.setdefault(change.table, {})
                    table[change.key] = change.value
                    if change.value is None:
                        del table[change.key]
                if effect.token is not None:
                    self.do(Persisted(effect.token))

    def follow(self, server: int) -> Follow:
        """Return the last Follow to a server."""
        follows = [each for each in self.said if isinstance(each, Follow)]
        return next(each for each in reversed(follows) if each.server == server)

    def answer(self, server: int, head: int) -> None:
        """Answer the last Follow; `head` is the last position of the server's topics."""
        follow = self.follow(server)
        topics = tuple(Followed(server, topic, head, head) for topic in follow.topics)
        answer = Following(server, HOME, self.incarnation, follow.number, topics, ())
        self.do(MessageReceived(PROXY, 7, answer))

    def arrive(self, server: int, position: int) -> StreamId:
        """Deliver a publication at a position of the server's first topic; return the stream."""
        stream = StreamId(server, self.follow(server).topics[0], 0)
        blob = encode_attributes({"price": 5})
        positions = range(position, position + 1)
        origins = (OriginRun(SourceId(FIRST, 0, 1), positions),)
        run = PublicationRun(stream, positions, (blob,), bytes(1), 0, (), origins)
        self.do(MessageReceived(PROXY, 7, Messages(HOME, stream.publisher, run)))
        return stream

    def gaps(self) -> list[tuple[StreamId, int, int]]:
        """Return the gaps that the client received."""
        return [(gap.stream, gap.first, gap.last) for gap in self.got if isinstance(gap, Gap)]

    def deliveries(self) -> list[int]:
        """Return the positions of the publications that the client received."""
        runs = [item.run for item in self.got if isinstance(item, Deliveries)]
        return [sequence for run in runs for sequence in run.sequences]

    def has_started(self) -> bool:
        """Return True if the client was notified of the start."""
        return any(isinstance(each, Subscribed) and each.state == "started" for each in self.said)


def test_publications_before_the_last_head_of_a_lost_subscription_are_in_a_gap() -> None:
    """The first server answers, then another subscription's topic advances before the second."""
    home = LossyHome()
    home.answer(FIRST, 3)
    stream = home.arrive(FIRST, 4)
    assert not home.has_started()
    home.answer(SECOND, 0)
    assert home.has_started()
    assert (stream, 1, 4) in home.gaps()
    home.arrive(FIRST, 5)
    assert home.deliveries() == [5]


def test_a_new_subscription_after_a_loss_has_no_gap() -> None:
    home = LossyHome(states=False)
    home.answer(FIRST, 3)
    home.arrive(FIRST, 4)
    home.answer(SECOND, 0)
    assert home.has_started()
    assert not home.gaps()
    home.arrive(FIRST, 5)
    assert home.deliveries() == [5]


def test_a_restart_is_announced_on_the_next_session_once_a_crash_cannot_repeat_it() -> None:
    """After a crash before the rows, a later gap would have publications that were not lost."""
    home = LossyHome()
    home.answer(FIRST, 3)
    home.held = []
    home.answer(SECOND, 0)
    home.do(SessionLost("s", 8, "silent"))
    home.do(SessionEstablished("s", 9, 1))
    home.do(MessageReceived("s", 9, Connect(False, 1, 1, 0, ((1, ()),))))
    home.do(MessageReceived("s", 9, Subscribe(1, PREDICATE)))
    home.arrive(FIRST, 4)
    assert not home.has_started()
    assert not home.got
    (start,) = home.held
    assert start.token is not None
    home.do(Persisted(start.token))
    assert home.has_started()
    assert len(home.gaps()) == len(home.follow(FIRST).topics)
    assert home.deliveries() == [4]


def test_a_gap_that_a_crash_has_taken_is_announced_again() -> None:
    """The restart of the subscription is on disk, and the client did not receive the gap."""
    before = LossyHome()
    before.answer(FIRST, 3)
    before.answer(SECOND, 0)
    assert len(before.gaps()) == len(before.follow(FIRST).topics)
    home = LossyHome(before.disk)
    assert home.has_started()
    assert sorted(home.gaps()) == sorted(before.gaps())


def test_a_gap_that_the_client_has_is_not_announced_after_a_crash() -> None:
    before = LossyHome()
    before.answer(FIRST, 3)
    before.answer(SECOND, 0)
    home = LossyHome(before.disk, tuple((stream, last) for stream, _, last in before.gaps()))
    assert home.has_started()
    assert not home.gaps()


def test_a_request_from_before_a_crash_waits_for_its_client() -> None:
    """Only the client has a record of a start before the loss, whether it requested it since."""
    disk = LossyHome().disk
    for tables, states in product((["subscriptions"], ["subscriptions", "confirmed"]), (1, 0)):
        home = LossyHome({name: disk[name] for name in tables}, states=bool(states))
        home.answer(FIRST, 3)
        home.answer(SECOND, 0)
        assert home.has_started()
        assert bool(home.gaps()) == states
