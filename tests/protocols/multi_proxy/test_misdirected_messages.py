"""A proxy passes messages between servers on from servers, and to servers, only.

The messages are those that a proxy handles; a new kind is tried without a change here.
"""

from dataclasses import fields, replace
from typing import Any, Final, get_args

import pytest

from brokerd.errors import RemoteProtocolError
from brokerd.protocols.interface import (
    MessageReceived,
    Send,
    SessionEstablished,
    SessionLost,
    Started,
)
from brokerd.protocols.multi_proxy import proxy
from brokerd.protocols.multi_proxy.core import MultiProxy
from brokerd.protocols.multi_proxy.messages import (
    KINDS,
    Answer,
    Assign,
    Assigned,
    Carry,
    Claim,
    Give,
    Located,
    Messages,
    Move,
    Owned,
    Owner,
    Periodic,
    Put,
    Request,
    Transfer,
    Transferred,
)
from brokerd.protocols.multi_proxy.parameters import MultiProxyParameters
from brokerd.protocols.registry import make_protocol
from brokerd.wire.attributes import decode_attribute_table
from tests.helpers.proxy_stories import sides
from tests.helpers.stream_runs import run_at

PROXY, SERVER, OTHER, EDGE = 0, 1, 2, 3
REQUESTS: Final = tuple(each for each in get_args(Request) if each is not Claim)
"""A proxy makes a Claim, and forwards none."""
ANSWERS: Final = get_args(Answer)
BETWEEN: Final = tuple(
    each.type
    for each in KINDS
    if each.type in vars(proxy).values() and each.type not in (*REQUESTS, *ANSWERS, proxy.Servers)
)
FROM_SERVERS: Final = (*ANSWERS, *BETWEEN)
TARGETS: Final = {
    **dict.fromkeys((*REQUESTS, Assign, Carry, Periodic, Transfer), ("server",)),
    Assigned: ("arbiter",),
    Transferred: ("giver",),
    Give: ("server", "owner", "arbiter"),
}
"""The fields with servers that the proxy checks; the target checks the others."""


def message_of(kind: type) -> Any:
    """Return a message of a kind from a server, or of an access broker to a server."""
    values = {
        "home": EDGE, "server": SERVER if kind in (*ANSWERS, *REQUESTS, Periodic) else OTHER,
        "giver": OTHER, "arbiter": OTHER, "owner": OTHER, "run": run_at((3, 5)),
    }  # fmt: skip
    numbers = ("int", "BrokerNumber", "SourceId")
    return kind(*[
        values.get(each.name, 1 if str(each.type) in numbers or each.type is int else ())
        for each in fields(kind)
    ])  # fmt: skip


def make_core() -> MultiProxy:
    """Return a proxy with sessions to two servers and an access broker."""
    topology = sides(proxies=1, servers=2, edges=1)
    core = make_protocol(
        "multi_proxy", PROXY, topology, MultiProxyParameters(), decode_attribute_table
    )
    assert isinstance(core, MultiProxy)
    core.handle(Started(1, False, {}, {}), 0)
    for peer in (SERVER, OTHER, EDGE):
        core.handle(SessionEstablished(peer, 7, 1), 0)
    return core


def pass_on(core: MultiProxy, peer: int, message: Any) -> list[tuple[int, Any]]:
    """Return the messages that the proxy sends for a message of a peer."""
    effects = core.handle(MessageReceived(peer, 7, message), 0)
    return [(each.peer, each.message) for each in effects if isinstance(each, Send)]


def test_all_messages_between_servers_are_among_those_tried() -> None:
    assert {*BETWEEN} == {*TARGETS, Owned} - {*REQUESTS}
    assert Move not in FROM_SERVERS, "a proxy sends these itself"


@pytest.mark.parametrize("kind", FROM_SERVERS)
def test_a_proxy_refuses_an_access_broker_in_the_place_of_a_server(kind: type) -> None:
    with pytest.raises(RemoteProtocolError, match=f"{EDGE} is no server"):
        pass_on(make_core(), EDGE, message_of(kind))


@pytest.mark.parametrize(
    "kind, name", [(kind, name) for kind, names in TARGETS.items() for name in names]
)
def test_a_proxy_refuses_an_access_broker_as_a_server(kind: type, name: str) -> None:
    sender = EDGE if kind in REQUESTS else SERVER
    wrong: Any = {name: EDGE}
    with pytest.raises(RemoteProtocolError):
        pass_on(make_core(), sender, replace(message_of(kind), **wrong))


@pytest.mark.parametrize("kind", REQUESTS)
def test_an_access_broker_makes_requests_in_its_own_name_only(kind: type) -> None:
    core, message = make_core(), message_of(kind)
    assert SERVER in dict(pass_on(core, EDGE, message))
    with pytest.raises(RemoteProtocolError, match="asks for broker"):
        pass_on(core, EDGE, replace(message, home=OTHER))


@pytest.mark.parametrize("kind", [*ANSWERS, *BETWEEN])
def test_a_message_of_a_server_reaches_its_target_once(kind: type) -> None:
    message = message_of(kind)
    sent = pass_on(make_core(), SERVER, message)
    if kind is Owned:
        assert not [each for each in sent if each[1] is message]
    else:
        assert sent == [(EDGE if kind in ANSWERS else OTHER, message)]


@pytest.mark.parametrize("kind", [*REQUESTS, *FROM_SERVERS])
def test_a_proxy_counts_the_publications_of_clients_that_it_forwards(kind: type) -> None:
    core, message = make_core(), message_of(kind)
    pass_on(core, EDGE if kind in REQUESTS else SERVER, message)
    forwarded = core.statistics()["publications_forwarded"]
    assert forwarded == (len(message.run) if kind in (Put, Messages) else 0)


def test_the_owners_in_an_answer_stay_in_memory() -> None:
    core = make_core()
    core.handle(SessionLost(OTHER, 7, "closed_by_peer"), 0)
    owner = Owner(0, SERVER, 1)
    pass_on(core, SERVER, Located(SERVER, EDGE, (owner,)))
    announced = core.handle(SessionEstablished(OTHER, 8, 1), 0)
    assert Owned((owner,)) in [each.message for each in announced if isinstance(each, Send)]
