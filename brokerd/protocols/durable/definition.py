"""The definition of durable for the registry of protocols."""

from brokerd.errors import ConfigError
from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.overlay.cells import CellGraph
from brokerd.overlay.topology import Topology
from brokerd.protocols.definition import Acknowledgement, Promises, ProtocolDefinition
from brokerd.protocols.durable.messages import KINDS, LOST
from brokerd.protocols.durable.parameters import DurableParameters
from brokerd.protocols.gryphon import KIND, Routes, hosts_clients, logs_with
from brokerd.protocols.parts.records import pack_positions, unpack_positions


def key_of(stream: StreamId) -> str:
    """Return a stream as a part of row keys."""
    return f"{stream.broker}.{stream.publisher}"


def log_of(stream: StreamId) -> str:
    """Return the name of the log of a stream's matches."""
    return f"matches.{key_of(stream)}"


def _routes(topology: Topology, parameters: DurableParameters) -> Routes:
    return Routes(0, topology, parameters.pubends)


def _stream_logs(topology: Topology, parameters: DurableParameters) -> tuple[str, ...]:
    streams = _routes(topology.restrict_to_kind(KIND), parameters).pubend_streams()
    return tuple(log_of(each) for each in streams)


def _find_cause_to_keep_loss(
    topology: Topology, parameters: DurableParameters, broker: BrokerNumber
) -> str:
    """Return why an operator cannot accept a loss: others have withheld events meanwhile."""
    if not parameters.filters or not hosts_clients(topology, broker):
        return ""
    return (
        "with filters = true other brokers have withheld events that restored subscriptions "
        "may be owed"
    )


def _check_decommission(topology: Topology, broker: BrokerNumber, where: str) -> None:
    graph = topology.overlay(KIND)
    assert isinstance(graph, CellGraph), f"{topology.name} is of kind {topology.kind}"
    near = graph.surroundings(broker)
    if not hosts_clients(topology, broker):
        cell = graph.cells[graph.cell_of(broker)]
        raise ConfigError(
            f"{where}: {topology.brokers[broker]} is one of several brokers of cell {cell!r}; it "
            "has no subscriptions, and holds nothing back"
        )
    if len({graph.cell_of(each) for each in near}) != 1:
        names = ", ".join(topology.brokers[each] for each in near) or "no broker"
        raise ConfigError(
            f"{where}: {topology.brokers[broker]} is linked to {names}; the others can continue "
            "without a leaf only"
        )


DURABLE = ProtocolDefinition(
    name="durable",
    kind=KIND,
    parameters=DurableParameters,
    messages=KINDS,
    promises=Promises(
        exactly_once=True,
        members_may_change=False,
        gaps=(LOST,),
        absence_gaps=(LOST,),
        retention_may_change=True,
        resumes_elsewhere=True,
        keeps_committed=True,
    ),
    gap_ages_ns=lambda parameters: parameters.gap_ages_ns,
    acknowledgement=lambda parameters: Acknowledgement.STORED,
    logs=logs_with,
    stream_logs=_stream_logs,
    bypasses_links=lambda parameters: False,
    hosts_clients=hosts_clients,
    title="durable subscriptions",
    recovery=(
        "The publisher's broker logs every publication and keeps it until all subscribers, "
        "connected or not, have acknowledged it. A subscriber's broker logs the matches of each "
        "subscription, and fetches missed publications."
    ),
    keeps_loss=_find_cause_to_keep_loss,
    core="brokerd.protocols.durable.core",
    check_decommission=_check_decommission,
    pack_positions=pack_positions,
    unpack_positions=unpack_positions,
    checks="brokerd.protocols.durable.checks",
)
"""Gryphon's core, with subscriptions that outlast the absence of their clients."""
