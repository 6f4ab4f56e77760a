"""The definition of multi_proxy for the registry of protocols."""

from brokerd.errors import ConfigError
from brokerd.model.identity import BrokerNumber
from brokerd.overlay.bipartite import Bipartite
from brokerd.overlay.outage import Outage, Reached
from brokerd.overlay.routes import FailedElements, is_open
from brokerd.overlay.topology import Topology
from brokerd.protocols.definition import (
    Acknowledgement,
    Excess,
    Order,
    Promises,
    ProtocolDefinition,
    excess_of_routes,
)
from brokerd.protocols.multi_proxy.messages import KINDS, LOST
from brokerd.protocols.multi_proxy.parameters import CAUSAL, PAPER, MultiProxyParameters
from brokerd.protocols.multi_proxy.routes import KIND
from brokerd.protocols.multi_proxy.state import LOG
from brokerd.protocols.parts.records import pack_positions, unpack_positions


def _servers(topology: Topology) -> tuple[int, ...]:
    overlay = topology.overlay(KIND)
    assert isinstance(overlay, Bipartite), f"{topology.name} is of kind {topology.kind}"
    return overlay.servers


def _excess(
    topology: Topology, parameters: MultiProxyParameters, lost: FailedElements
) -> Excess | None:
    """Return the excess of a loss, which is a server, or all routes of a broker to a server."""
    servers = [broker for broker in lost.brokers if broker in _servers(topology)]
    if servers:
        name = topology.brokers[servers[0]]
        return Excess((servers[0],), f"the topics of {name} wait until it is back")
    return excess_of_routes(topology, parameters, lost)


def _gap_ages_ns(parameters: MultiProxyParameters) -> tuple[int | None]:
    """Return the least age of a publication in a gap; 0 with a bound in bytes."""
    if parameters.max_retain_bytes:
        return (0,)
    return (parameters.max_retain_ns or None,)


def _check_decommission(topology: Topology, broker: BrokerNumber, where: str) -> None:
    overlay = topology.overlay(KIND)
    assert isinstance(overlay, Bipartite), f"{topology.name} is of kind {topology.kind}"
    if broker not in overlay.edges:
        raise ConfigError(
            f"{where}: {topology.brokers[broker]} is a {overlay.role(broker)}; the others can "
            "continue without an edge only"
        )


def _keeps_loss(topology: Topology, parameters: MultiProxyParameters, broker: BrokerNumber) -> str:
    """See ProtocolDefinition: a proxy and an edge store their clients' rows, and chosen servers."""
    overlay = topology.overlay(KIND)
    assert isinstance(overlay, Bipartite), f"{topology.name} is of kind {topology.kind}"
    is_server, ownership = broker in overlay.servers, parameters.ownership
    if len(overlay.servers) == 1:
        return ""  # it owns all topics
    if ownership == CAUSAL or (is_server and ownership == PAPER):
        return (
            f'with ownership = "{ownership}" it lost the server of each topic, so a repeated '
            "publication may be stored at two servers"
        )
    if is_server and parameters.spread_topics:
        return (
            f"it is a server, and topics move (spread_topics = {parameters.spread_topics}): it "
            "lost which topics it has given to other servers, so a topic could have two owners"
        )
    return ""


def _reaches(topology: Topology, parameters: MultiProxyParameters, outage: Outage) -> Reached:
    """Return the publishers that each access broker receives in all topics, over all servers."""
    overlay = topology.overlay(KIND)
    live = outage.live(topology)
    unavailable = outage.down | outage.absorbing
    links = outage.cut | {(min(pair), max(pair)) for pair in outage.absorbed}
    whole = {
        broker: all(
            is_open(overlay.route(broker, server), unavailable, links)
            for server in _servers(topology)
            if server != broker
        )
        and unavailable.isdisjoint(_servers(topology))
        for broker in live
    }
    return {
        home: frozenset(
            origin for origin in live if origin == home or (whole[origin] and whole[home])
        )
        for home in live
    }


def _order(parameters: MultiProxyParameters) -> Order:
    """Return the order that holds within a topic, or within a part of a topic."""
    return {CAUSAL: Order.STREAM, PAPER: Order.NONE}.get(parameters.ownership, Order.TOPIC)


MULTI_PROXY = ProtocolDefinition(
    name="multi_proxy",
    kind=KIND,
    parameters=MultiProxyParameters,
    messages=KINDS,
    promises=Promises(exactly_once=True, members_may_change=False, order=Order.TOPIC, gaps=(LOST,)),
    order=_order,
    gap_ages_ns=_gap_ages_ns,
    acknowledgement=lambda parameters: Acknowledgement.STORED,
    logs=lambda parameters: (LOG,),
    bypasses_links=lambda parameters: False,
    excess=_excess,
    reaches=_reaches,
    title="multiple proxies",
    recovery=(
        "The server that owns a topic logs every publication in it and keeps it until all "
        "followers of the topic have acknowledged it. An unanswered request is sent again over "
        "another proxy, and nothing is stored or delivered twice."
    ),
    keeps_loss=_keeps_loss,
    core="brokerd.protocols.multi_proxy.core",
    pack_positions=pack_positions,
    unpack_positions=unpack_positions,
    topic_attribute=lambda parameters: str(parameters.topic_attribute),
    check_decommission=_check_decommission,
    checks="brokerd.protocols.multi_proxy.checks",
)
"""Each publisher's order holds within a topic.

Subscriptions to several topics have no order between.

With `ownership = "causal"` a topic may have parts, each with an order of its own; with "paper" no
order is promised.
"""
