"""What a home takes of what comes: only what continues what it has."""

from typing import Any

from brokerd.model.client_messages import Connect, Deliveries, Subscribe
from brokerd.model.identity import SourceId, StreamId
from brokerd.model.predicate_text import parse_predicate
from brokerd.model.publication import OriginRun, PublicationRun
from brokerd.named_bugs import planted
from brokerd.protocols.interface import (
    Commit,
    Deliver,
    MessageReceived,
    Persisted,
    Send,
    SessionEstablished,
    Started,
)
from brokerd.protocols.multi_proxy.messages import Follow, Followed, Following, Messages, Servers
from brokerd.protocols.multi_proxy.mutants import MUTANTS
from brokerd.protocols.multi_proxy.parameters import MultiProxyParameters
from brokerd.protocols.registry import make_protocol
from brokerd.wire.attributes import decode_attribute_table, encode_attributes
from tests.helpers.proxy_stories import sides

PROXY, SERVER, HOME = 0, 1, 2


class Home:
    """A home's core with one client, which has subscribed to one topic; its disk is quick."""

    def __init__(self) -> None:
        self.core = make_protocol(
            "multi_proxy",
            HOME,
            sides(proxies=1, servers=1, edges=1),
            MultiProxyParameters(topics=8, topic_attribute="kind"),
            decode_attribute_table,
        )
        self.said: list[Any] = []
        self.got: list[int] = []
        self.do(Started(1, False, {}))
        self.do(SessionEstablished(PROXY, 7, 1))
        self.do(MessageReceived(PROXY, 7, Servers((SERVER,))))
        self.do(MessageReceived(PROXY, 7, Following(SERVER, HOME, 1, 1, ())))
        self.do(SessionEstablished("s", 8, 1))
        self.do(MessageReceived("s", 8, Connect(False, 0, 1, 0, ())))
        self.do(MessageReceived("s", 8, Subscribe(1, parse_predicate("kind = 'a'"))))
        follow = next(each for each in reversed(self.said) if isinstance(each, Follow))
        (self.topic,) = follow.topics
        topics = (Followed(self.topic, 0, 0),)
        self.do(MessageReceived(PROXY, 7, Following(SERVER, HOME, 1, follow.number, topics)))

    def do(self, event: Any) -> None:
        """An event, and all that follows when what is written is on disk."""
        for effect in self.core.handle(event, 0):
            if isinstance(effect, Send):
                self.said.append(effect.message)
            elif isinstance(effect, Commit) and effect.token is not None:
                self.do(Persisted(effect.token))
            elif isinstance(effect, Deliver):
                assert isinstance(effect.item, Deliveries)
                self.got += effect.item.run.sequences

    def messages(self, first: int, last: int) -> None:
        """These positions of the topic come."""
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


def nothing_is_taken_behind_a_hole() -> bool:
    home = Home()
    home.messages(1, 2)
    home.messages(4, 5)
    home.messages(3, 5)
    return home.got == [1, 2, 3, 4, 5]


def test_nothing_is_taken_behind_a_hole() -> None:
    assert nothing_is_taken_behind_a_hole()
    with planted([MUTANTS["over-a-hole"]]):
        assert not nothing_is_taken_behind_a_hole()


def test_what_has_come_is_not_taken_again() -> None:
    home = Home()
    home.messages(1, 3)
    home.messages(2, 5)
    home.messages(1, 5)
    assert home.got == [1, 2, 3, 4, 5]
