"""Tests of lists of topics that are refused: as a whole, and before any effect."""

from typing import Any

import pytest

from brokerd.errors import RemoteProtocolError
from brokerd.protocols.interface import MessageReceived, SessionEstablished, Started
from brokerd.protocols.multi_proxy.messages import (
    Assigned,
    Claim,
    Generation,
    Merge,
    Move,
    Owned,
    Owner,
)
from brokerd.protocols.multi_proxy.parameters import ARBITER, CAUSAL, MultiProxyParameters
from brokerd.protocols.registry import make_protocol
from brokerd.wire.attributes import decode_attribute_table
from tests.helpers.proxy_stories import sides
from tests.protocols.multi_proxy.test_arbiter_transfers import DECIDED
from tests.protocols.multi_proxy.test_server import HOME, Disk

PROXY, SERVER, OTHER, EDGE = 0, 1, 2, 3


@pytest.mark.parametrize(
    "ownership, message",
    [
        (ARBITER, Claim(1, HOME, (Owner(DECIDED, 2), Owner(8, 2)))),
        (ARBITER, Claim(1, HOME, (Owner(DECIDED, 9),))),
        (ARBITER, Move(1, (Owner(DECIDED, 2), Owner(8, 2)))),
        (ARBITER, Assigned(2, 1, (Generation(DECIDED, 1), Generation(8, 1)))),
        (CAUSAL, Merge(1, (Owner(DECIDED, 9),))),
    ],
    ids=str,
)
def test_a_refused_list_of_topics_is_refused_as_a_whole(ownership: str, message: Any) -> None:
    """The first topics of the list were taken, or an unknown server ended the broker."""
    disk = Disk(ownership, 3)
    if isinstance(message, Assigned):
        disk.tell(Claim(1, HOME, (Owner(DECIDED, 2),)))
    with pytest.raises(RemoteProtocolError):
        disk.request(message)
    assert not disk.waiting


def test_a_proxy_takes_no_owners_that_its_own_access_broker_refuses() -> None:
    """The proxy had announced the owners to others when its own access broker refused them."""
    topology = sides(proxies=1, servers=3, edges=1)
    parameters = MultiProxyParameters(ownership=ARBITER, topics=8)
    core = make_protocol("multi_proxy", PROXY, topology, parameters, decode_attribute_table)
    core.handle(Started(1, False, {}, {}), 0)
    for peer in (SERVER, OTHER, EDGE + 1):
        core.handle(SessionEstablished(peer, 7, 1), 0)
    core.handle(MessageReceived(SERVER, 7, Owned((Owner(1, SERVER, 1),))), 0)
    forged = Owned((Owner(2, OTHER, 1), Owner(1, OTHER, 5)))
    with pytest.raises(RemoteProtocolError, match="leaps from 1"):
        core.handle(MessageReceived(OTHER, 7, forged), 0)
