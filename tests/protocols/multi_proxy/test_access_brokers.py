"""An access broker accepts only publications that continue its own positions."""

from collections.abc import Callable
from typing import Any

import pytest

from brokerd.model.client_messages import Connect, Connected, Deliveries, Gap, Publish, Subscribe
from brokerd.model.identity import SourceId, StreamId
from brokerd.model.predicate_text import parse_predicate
from brokerd.model.publication import OriginRun, PublicationRun
from brokerd.protocols.interface import (
    Commit,
    DeadlineReached,
    Deliver,
    DeliveryProtocol,
    MessageReceived,
    Persisted,
    Send,
    SessionEstablished,
    Started,
)
from brokerd.protocols.multi_proxy.messages import (
    Answered,
    Follow,
    Followed,
    Following,
    Get,
    Lost,
    LostRun,
    Messages,
    Put,
    Servers,
    Stored,
)
from brokerd.protocols.multi_proxy.parameters import RENDEZVOUS, MultiProxyParameters
from brokerd.protocols.registry import make_protocol
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.units import MILLISECOND_NS
from brokerd.wire.attributes import decode_attribute_table, encode_attributes
from tests.helpers.proxy_stories import sides

MUTANTS = bugs_of("multi_proxy")

PROXY, SERVER, HOME, FORMER = 0, 1, 2, 9


def make_home() -> DeliveryProtocol:
    return make_protocol(
        "multi_proxy",
        HOME,
        sides(proxies=1, servers=1, edges=1),
        MultiProxyParameters(
            ownership=RENDEZVOUS,
            topics=8,
            topic_attribute="kind",
            get_wait_ns=500 * MILLISECOND_NS,
        ),
        decode_attribute_table,
    )


class Home:
    """The core of an access broker with a client on one topic, and with an instant disk.

    Args:
        elsewhere: the position up to which another server delivered the topic to this broker.
    """

    def __init__(self, elsewhere: int = 0) -> None:
        self.core = make_home()
        self.now_ns = 0
        self.said: list[Any] = []
        self.got: list[int] = []
        self.do(Started(1, False, {}))
        self.do(SessionEstablished(PROXY, 7, 1))
        self.do(MessageReceived(PROXY, 7, Servers((SERVER,))))
        self.do(MessageReceived(PROXY, 7, Following(SERVER, HOME, 1, 1, (), ())))
        self.do(SessionEstablished("s", 8, 1))
        self.do(MessageReceived("s", 8, Connect(False, 0, 1, 0, ())))
        self.do(MessageReceived("s", 8, Subscribe(1, parse_predicate("kind = 'a'"))))
        follow = next(each for each in reversed(self.said) if isinstance(each, Follow))
        (self.topic,) = follow.topics
        topics = (Followed(SERVER, self.topic, 0, 0),)
        if elsewhere:
            topics += (Followed(FORMER, self.topic, 0, elsewhere),)
        self.do(MessageReceived(PROXY, 7, Following(SERVER, HOME, 1, follow.number, topics, ())))

    def do(self, event: Any) -> None:
        """Handle an event and the events that follow from durable writes."""
        for effect in self.core.handle(event, self.now_ns):
            if isinstance(effect, Send):
                self.said.append(effect.message)
            elif isinstance(effect, Commit) and effect.token is not None:
                self.do(Persisted(effect.token))
            elif isinstance(effect, Deliver):
                assert isinstance(effect.item, Deliveries | Gap)
                if isinstance(effect.item, Deliveries):
                    self.got += effect.item.run.sequences

    def messages(self, first: int, last: int) -> None:
        """Receive these positions of the topic."""
        blob = encode_attributes({"kind": "a"})
        positions = range(first, last + 1)
        run = PublicationRun(
            StreamId(SERVER, self.topic, 0),
            positions,
            (blob,),
            bytes(len(positions)),
            0,
            (),
            (OriginRun(SourceId(SERVER, 0, 1), positions),),
        )
        self.do(MessageReceived(PROXY, 7, Messages(HOME, self.topic, run)))


def nothing_is_accepted_behind_a_gap() -> bool:
    home = Home()
    home.messages(1, 2)
    home.messages(4, 5)
    home.messages(3, 5)
    return home.got == [1, 2, 3, 4, 5]


def a_new_subscription_requests_no_earlier_publication() -> bool:
    """Return True if a new subscription requests no earlier publication.

    The server takes the access broker for an old follower that lacked these publications.
    """
    home = Home(elsewhere=3)
    (get,) = [each for each in home.said if isinstance(each, Get)]
    return [(each.part, each.after) for each in get.wanted] == [(SERVER, 0), (FORMER, 3)]


def test_a_new_subscription_does_not_need_earlier_publications() -> None:
    assert a_new_subscription_requests_no_earlier_publication()
    with plant([MUTANTS["subscription-begins-with-retained-parts"]]):
        assert not a_new_subscription_requests_no_earlier_publication()


def test_no_publication_is_accepted_after_a_gap() -> None:
    assert nothing_is_accepted_behind_a_gap()
    with plant([MUTANTS["over-a-hole"]]):
        assert not nothing_is_accepted_behind_a_gap()


def a_started_subscription_continues_beside_a_new_one() -> bool:
    """Return True if a started subscription continues next to a subscription that starts.

    Of two for the same topic, one had not started when their access broker crashed.
    """
    home = Home()
    rows: dict[str, dict[str, Any]] = {
        "subscriptions": {f"{client}/1": [[["kind", "=", ["plain", "a"]]]] for client in "as"},
        "begins": {"s/1": [[SERVER, home.topic, 0, 0]]},
    }
    home.said.clear()
    home.core = make_home()
    home.do(Started(2, True, rows))
    home.do(SessionEstablished(PROXY, 7, 1))
    home.do(MessageReceived(PROXY, 7, Servers((SERVER,))))
    topics = (Followed(SERVER, home.topic, 3, 9),)
    home.do(MessageReceived(PROXY, 7, Following(SERVER, HOME, 2, 1, topics, ())))
    (get,) = [each for each in home.said if isinstance(each, Get)]
    return get.wanted[0].after == 3


def test_a_subscription_continues_while_another_subscription_starts() -> None:
    assert a_started_subscription_continues_beside_a_new_one()
    with plant([MUTANTS["begins-for-all"]]):
        assert not a_started_subscription_continues_beside_a_new_one()


class Publishing(Home):
    """A client and a publisher; repeated publish requests are checked at 300 ms."""

    def __init__(self) -> None:
        super().__init__()
        self.do(SessionEstablished("p", 9, 1))
        self.do(MessageReceived("p", 9, Connect(True, 1, 1, 0, ())))
        (connected,) = [each for each in self.said if isinstance(each, Connected) and each.source]
        assert connected.source is not None
        self.source = connected.source

    def publish(self, at_ms: int, kind: str, first: int, last: int) -> int:
        """Publish events of a kind and return their topic."""
        self.now_ns = at_ms * MILLISECOND_NS
        blob = encode_attributes({"kind": kind})
        numbers = range(first, last + 1)
        run = PublicationRun(self.source, numbers, (blob,), bytes(len(numbers)), 0, ())
        self.do(MessageReceived("p", 9, Publish(run)))
        return next(each.topic for each in reversed(self.said) if isinstance(each, Put))

    def stored(self, at_ms: int, topic: int, through: int) -> None:
        """Receive the server's acknowledgement of a publisher's progress in a topic."""
        self.receives_from(at_ms, Stored(SERVER, HOME, topic, self.source, through))

    def receives_from(self, at_ms: int, message: Any) -> None:
        """Receive a message of the server over its proxy."""
        self.now_ns = at_ms * MILLISECOND_NS
        self.do(MessageReceived(PROXY, 7, message))

    def put_again(self) -> list[int]:
        """Return the topics with a publish request at 300 ms."""
        self.now_ns = 300 * MILLISECOND_NS
        self.said.clear()
        self.do(DeadlineReached())
        return sorted(each.topic for each in self.said if isinstance(each, Put))


def a_put_that_waits_at_its_server_is_not_repeated() -> bool:
    home = Publishing()
    topic = home.publish(0, "a", 1, 3)
    home.stored(200, topic, 0)
    return not home.put_again()


def a_lost_put_is_repeated_although_gets_are_answered() -> bool:
    home = Publishing()
    topic = home.publish(0, "a", 1, 3)
    get = next(each for each in reversed(home.said) if isinstance(each, Get))
    home.receives_from(200, Answered(SERVER, HOME, get.incarnation, get.number))
    return home.put_again() == [topic]


def an_overtaken_put_is_repeated_although_others_are_stored() -> bool:
    home = Publishing()
    first = home.publish(0, "a", 1, 3)
    second = home.publish(10, "b", 4, 4)
    home.publish(20, "b", 5, 5)
    home.stored(200, second, 4)
    return set(home.put_again()) == {first, second}


def a_put_in_its_turn_is_not_repeated() -> bool:
    home = Publishing()
    first = home.publish(0, "a", 1, 3)
    home.publish(10, "b", 4, 4)
    home.stored(200, first, 3)
    return not home.put_again()


RULES: dict[str, Callable[[], bool]] = {
    "holds-in-silence": a_put_that_waits_at_its_server_is_not_repeated,
    "any-answer-will-do": a_lost_put_is_repeated_although_gets_are_answered,
    "overtaken-put-is-awaited": an_overtaken_put_is_repeated_although_others_are_stored,
    "put-is-repeated-to-a-busy-server": a_put_in_its_turn_is_not_repeated,
}


@pytest.mark.parametrize("bug", RULES)
def test_a_rule_holds_and_its_bug_is_seen(bug: str) -> None:
    assert RULES[bug]()
    with plant([MUTANTS[bug]]):
        assert not RULES[bug]()


def test_a_gap_of_lost_state_leaves_room_for_publications() -> None:
    """A client that is away has not acknowledged a gap of all positions before a loss."""
    home = Home()
    stream, last = SourceId(SERVER, home.topic, 0), 1 << 61
    home.messages(1, 2)
    lost = Lost(SERVER, HOME, SERVER, home.topic, (LostRun(3, stream, 3, last),))
    home.do(MessageReceived(PROXY, 7, lost))
    get = next(each for each in reversed(home.said) if isinstance(each, Get))
    home.do(MessageReceived(PROXY, 7, Answered(SERVER, HOME, get.incarnation, get.number)))
    get = next(each for each in reversed(home.said) if isinstance(each, Get))
    (wanted,) = get.wanted
    assert (wanted.done, wanted.after) == (0, last)
    assert wanted.most == MultiProxyParameters().home_window - 3
    assert home.core.detail()["undone"] == 3


def test_received_publications_are_not_accepted_again() -> None:
    home = Home()
    home.messages(1, 3)
    home.messages(2, 5)
    home.messages(1, 5)
    assert home.got == [1, 2, 3, 4, 5]
