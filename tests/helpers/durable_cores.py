"""Single brokers of durable, driven by hand."""

from dataclasses import replace

from brokerd.model.publication import PublicationRun
from brokerd.overlay.topology import Topology
from brokerd.protocols.durable.parameters import DurableParameters
from brokerd.protocols.gryphon.messages import EVERYWHERE, Events
from brokerd.protocols.interface import (
    Commit,
    DeliveryProtocol,
    Effect,
    Event,
    LogEnds,
    MessageReceived,
    Persisted,
    SessionEstablished,
    Started,
)
from brokerd.protocols.registry import definition_of, make_protocol
from brokerd.simulator.world.broker_factory import AUTHORITY
from brokerd.wire.attributes import decode_attribute_table, encode_attributes
from tests.helpers.gryphon_stories import cells
from tests.helpers.stream_runs import run_at

BLOB = encode_attributes({"kind": "a"})


def events(*ticks: int) -> PublicationRun:
    return replace(run_at(ticks), attribute_table=(BLOB,))


def core_of(broker: int, topology: Topology) -> DeliveryProtocol:
    parameters = DurableParameters()
    core = make_protocol("durable", broker, topology, parameters, decode_attribute_table, AUTHORITY)
    logs = definition_of("durable").all_logs(topology, parameters)
    core.handle(Started(1, False, {}, {log: LogEnds() for log in logs}), 0)
    return core


def relay() -> DeliveryProtocol:
    """Return the middle broker of three, with ticks up to 9 of the first broker's stream."""
    core = core_of(1, cells("p1-b1", "b1-s1"))
    for peer in (0, 2):
        core.handle(SessionEstablished(peer, 10 + peer, 1), 0)
    core.handle(MessageReceived(0, 10, Events(0, 1, 10, False, True, EVERYWHERE, events(3, 6))), 0)
    return core


def handle(core: DeliveryProtocol, event: Event) -> list[Effect]:
    """Return the effects of an event on a broker with a disk that completes writes at once."""
    effects = core.handle(event, 0)
    for effect in list(effects):
        if isinstance(effect, Commit) and effect.token is not None:
            effects += handle(core, Persisted(effect.token))
    return effects
