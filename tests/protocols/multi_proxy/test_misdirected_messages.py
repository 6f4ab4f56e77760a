"""A proxy passes messages between servers on from servers, and to servers, only."""

from typing import Any

import pytest

from brokerd.errors import RemoteProtocolError
from brokerd.protocols.interface import MessageReceived, SessionEstablished, Started
from brokerd.protocols.multi_proxy.messages import Assign, Assigned, Generation, Transferred
from brokerd.protocols.multi_proxy.parameters import MultiProxyParameters
from brokerd.protocols.registry import make_protocol
from brokerd.wire.attributes import decode_attribute_table
from tests.helpers.proxy_stories import sides

PROXY, SERVER, OTHER, EDGE = 0, 1, 2, 3
TOPICS = (Generation(1, 1),)


@pytest.mark.parametrize(
    "message, misdirected",
    [
        (Assign(OTHER, SERVER, TOPICS), Assign(EDGE, SERVER, TOPICS)),
        (Assigned(SERVER, OTHER, TOPICS), Assigned(SERVER, EDGE, TOPICS)),
        (Transferred(SERVER, OTHER, 1, 1), Transferred(SERVER, EDGE, 1, 1)),
    ],
    ids=["Assign", "Assigned", "Transferred"],
)
def test_a_proxy_refuses_messages_between_servers_from_or_to_an_access_broker(
    message: Any, misdirected: Any
) -> None:
    topology = sides(proxies=1, servers=2, edges=1)
    core = make_protocol(
        "multi_proxy", PROXY, topology, MultiProxyParameters(), decode_attribute_table
    )
    core.handle(Started(1, False, {}, {}), 0)
    for peer in (SERVER, OTHER, EDGE):
        core.handle(SessionEstablished(peer, 7, 1), 0)
    assert [each.message for each in core.handle(MessageReceived(SERVER, 7, message), 0)] == [
        message
    ]
    for peer, wrong in ((EDGE, message), (SERVER, misdirected)):
        with pytest.raises(RemoteProtocolError, match="is no server"):
            core.handle(MessageReceived(peer, 7, wrong), 0)
