"""Every protocol dials a broker after a session as before the first."""

from typing import Any

import pytest

from brokerd.protocols.delta_tree.messages import Summary
from brokerd.protocols.interface import (
    Append,
    Commit,
    DeadlineReached,
    DeliveryProtocol,
    LogEnds,
    MessageReceived,
    OpenFailed,
    OpenSession,
    Persisted,
    Read,
    RecordsRead,
    SessionEstablished,
    SessionLost,
    Started,
)
from brokerd.protocols.registry import definition_of, make_protocol, parameters_on
from brokerd.units import SECOND_NS
from brokerd.wire.attributes import decode_attribute_table
from tests.helpers.every_protocol import BROKERS, PROTOCOLS, three_brokers

ATTEMPTS = 7
FIRST_MESSAGES: dict[str, tuple[Any, ...]] = {"delta_tree": (Summary((), False, ()),)}
"""The messages, by protocol, that prove a live peer; elsewhere the session does."""


class Dialler:
    """A broker with a peer that the test connects and disconnects, and an instant disk."""

    def __init__(self, protocol: str, broker: int) -> None:
        self.protocol = protocol
        topology = three_brokers(protocol)
        self.core: DeliveryProtocol = make_protocol(
            protocol, broker, topology, parameters_on(topology, protocol), decode_attribute_table
        )
        self.now_ns = 0
        self.session = 0
        self.dialled: list[Any] = []
        parameters = parameters_on(topology, protocol)
        definition = definition_of(protocol)
        names = (*definition.logs(parameters), *definition.stream_logs(topology, parameters))
        logs = dict.fromkeys(names, LogEnds())
        self.handle(Started(1, False, {}, logs))

    def handle(self, event: Any) -> None:
        for effect in self.core.handle(event, self.now_ns):
            if isinstance(effect, OpenSession):
                self.dialled.append(effect.peer)
            elif isinstance(effect, Commit | Append) and effect.token is not None:
                self.handle(Persisted(effect.token))
            elif isinstance(effect, Read):
                self.handle(RecordsRead(effect.log, effect.first, ()))

    def wait(self, peer: int) -> int:
        """Return the time until the peer is dialled."""
        began_ns = self.now_ns
        while peer not in self.dialled:
            due_ns = self.core.next_deadline()
            assert due_ns is not None, "nobody dials it any more"
            assert due_ns - began_ns < 100 * SECOND_NS
            self.now_ns = max(self.now_ns, due_ns)
            self.handle(DeadlineReached())
        self.dialled = [each for each in self.dialled if each != peer]
        return self.now_ns - began_ns

    def fail(self, peer: int, times: int) -> list[int]:
        found = []
        for _ in range(times):
            self.handle(OpenFailed(peer, "nobody listens"))
            found.append(self.wait(peer))
        return found

    def meet(self, peer: int) -> None:
        """Play a short session that ends in silence."""
        self.session += 1
        self.handle(SessionEstablished(peer, self.session, 1))
        self.dialled = [each for each in self.dialled if each != peer]
        for message in FIRST_MESSAGES.get(self.protocol, ()):
            self.handle(MessageReceived(peer, self.session, message))
        self.now_ns += SECOND_NS // 100
        self.handle(SessionLost(peer, self.session, "silent"))


def diallers(protocol: str) -> list[tuple[int, int]]:
    """Return the brokers that dial others at their start, with a peer for every dialler."""
    found = []
    for broker in range(len(BROKERS)):
        dialled = Dialler(protocol, broker).dialled
        found += [(broker, peer) for peer in dialled[:1]]
    return found


@pytest.mark.parametrize("failures", [(0, 0), (1, 3), (6, 0, 2)], ids=str)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_after_a_session_a_peer_is_dialled_as_soon_as_after_the_first(
    protocol: str, failures: tuple[int, ...]
) -> None:
    pairs = diallers(protocol)
    assert pairs, "some broker dials"
    for broker, peer in pairs:
        old, new = Dialler(protocol, broker), Dialler(protocol, broker)
        old.wait(peer)
        new.wait(peer)
        for times in failures:
            old.fail(peer, times)
            old.meet(peer)
            old.wait(peer)
        for each in (old, new):
            each.meet(peer)
        found = [(each.wait(peer), *each.fail(peer, ATTEMPTS)) for each in (old, new)]
        assert found[0] == found[1], f"{broker} dials {peer}"
        assert sorted(found[0][1:]) == [*found[0][1:]], "waits never shrink while nobody answers"
