"""An end of a subscription is answered once it is on disk, however often a client requests it."""

from collections.abc import Mapping
from typing import Any

import pytest

from brokerd.model.client_messages import (
    Connect,
    Connected,
    Detach,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
)
from brokerd.model.predicate import EVERYTHING
from brokerd.protocols.interface import (
    Commit,
    MessageReceived,
    Persisted,
    Send,
    SessionEstablished,
    SessionLost,
)
from tests.protocols.test_second_time import Dialler

CLIENT = "s"
ENDS: Mapping[str, Unsubscribe | Detach] = {
    "unsubscribe": Unsubscribe(1),
    "detach": Detach(False, 0),
}


class SlowDisk(Dialler):
    """A broker whose commits are durable when the test says so.

    Attributes:
        answers: the messages to the client.
    """

    def __init__(self, protocol: str) -> None:
        self.answers: list[Any] = []
        self.tokens: list[int] | None = None
        super().__init__(protocol, 0)

    def handle(self, event: Any) -> None:
        self.now_ns += 1
        for effect in self.core.handle(event, self.now_ns):
            if isinstance(effect, Send) and effect.peer == CLIENT:
                self.answers.append(effect.message)
            elif isinstance(effect, Commit) and effect.token is not None:
                if self.tokens is None:
                    self.handle(Persisted(effect.token))
                else:
                    self.tokens.append(effect.token)

    def connect(self, session: int) -> None:
        self.handle(SessionEstablished(CLIENT, session, 1))
        self.request(session, Connect(False, 1, 1, 0, ()))
        assert isinstance(self.answers[-1], Connected)

    def request(self, session: int, message: Any) -> None:
        self.handle(MessageReceived(CLIENT, session, message))

    def write(self) -> None:
        """Complete all writes."""
        tokens, self.tokens = self.tokens or [], None
        for token in tokens:
            self.handle(Persisted(token))


@pytest.mark.parametrize("protocol", ["delta_tree", "durable", "gryphon", "multi_proxy"])
@pytest.mark.parametrize("verb", ENDS)
def test_a_repeated_request_for_an_end_waits_for_the_write_of_the_first(
    protocol: str, verb: str
) -> None:
    """The answer to the first is lost with a session; a crash would restore the subscription."""
    broker, end = SlowDisk(protocol), ENDS[verb]
    broker.connect(1)
    broker.request(1, Subscribe(1, EVERYTHING))
    assert isinstance(broker.answers[-1], Subscribed)
    broker.tokens = []
    broker.request(1, end)
    broker.handle(SessionLost(CLIENT, 1, "silent"))
    broker.connect(2)
    broker.request(2, end)
    ends = [each for each in broker.answers if isinstance(each, Unsubscribed)]
    assert not ends, "before the end is on disk"
    broker.write()
    assert [each for each in broker.answers if isinstance(each, Unsubscribed)]
