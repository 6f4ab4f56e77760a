"""The brokers of a simulated cluster, the cores of their incarnations, and checks of both."""

import hashlib
from collections.abc import Iterable
from typing import Final

from brokerd.model.identity import BrokerNumber
from brokerd.model.operator_acts import (
    BASE,
    ORDER,
    OperatorAct,
    OperatorAuthority,
    compress,
    digest_number,
    multiply,
)
from brokerd.overlay.topology import Topology
from brokerd.protocols.interface import DeliveryProtocol
from brokerd.protocols.registry import make_protocol
from brokerd.simulator.checks.protocol_checks import simulation_of
from brokerd.simulator.checks.recounts import check_recounts
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.broker import Observer, OwnClock, SimulatedBroker
from brokerd.simulator.world.clock import WallClocks
from brokerd.simulator.world.state import ClusterState
from brokerd.wire.attributes import decode_attribute_table

DEPLOYMENT: Final = "simulated"
_SECRET: Final = bytes(32)


def sign(secret: bytes, message: bytes) -> bytes:
    """Return the signature of a message, not in constant time: for secrets of no worth.

    Source: RFC 8032 §5.1.6.
    """
    scalar, prefix = _expand(secret)
    public = compress(multiply(scalar, BASE))
    nonce = digest_number(prefix + message)
    commitment = compress(multiply(nonce, BASE))
    challenge = digest_number(commitment + public + message)
    return commitment + ((nonce + challenge * scalar) % ORDER).to_bytes(32, "little")


def public_key(secret: bytes) -> bytes:
    return compress(multiply(_expand(secret)[0], BASE))


def make_signature(act: str, target: str, version: int = 0) -> bytes:
    """Return the simulated authority's signature of an act."""
    return sign(_SECRET, OperatorAct(DEPLOYMENT, act, target, version).statement())


def _expand(secret: bytes) -> tuple[int, bytes]:
    content = hashlib.sha512(secret).digest()
    scalar = int.from_bytes(content[:32], "little") & ((1 << 254) - 8) | (1 << 254)
    return scalar, content[32:]


AUTHORITY: Final = OperatorAuthority(DEPLOYMENT, public_key(_SECRET))


class BrokerFactory:
    """The maker of brokers and cores.

    Args:
        observer: observes every step of the brokers; None without checks.

    Attributes:
        logs: the names of the logs on the disk of each further broker.
        wall_clocks: the wall clocks of all brokers.
    """

    def __init__(
        self,
        state: ClusterState,
        observer: Observer | None,
        logs: Iterable[str],
        wall_clocks: WallClocks,
    ) -> None:
        self._state = state
        self._observer = observer
        self.logs = logs
        self.wall_clocks = wall_clocks
        self._topologies: dict[BrokerNumber, Topology] = {}

    def add_broker(self, name: str) -> BrokerNumber:
        """Add a broker to the cluster, without a start."""
        state = self._state
        number = len(state.brokers)
        broker = SimulatedBroker(
            number,
            name,
            state.network,
            state.random,
            self.make_core,
            self._observer,
            self.logs,
            self.wall_clocks,
            OwnClock() if state.own_clocks else None,
        )
        broker.joins = number >= len(state.topology.as_deployed().brokers)
        state.brokers.append(broker)
        state.network.endpoints[number] = broker
        return number

    def make_core(self, number: BrokerNumber) -> DeliveryProtocol:
        """Return the core of a new incarnation, in the present topology."""
        self._topologies[number] = self._state.topology
        return self.make_equal_core(number)

    def make_equal_core(self, number: BrokerNumber) -> DeliveryProtocol:
        """Return a core equal to a broker's core at its start."""
        return make_protocol(
            self._state.protocol,
            number,
            self._topologies[number],
            self._state.parameters,
            decode_attribute_table,
            AUTHORITY,
        )


class Inspection:
    """The inspector of the brokers and clients of a cluster.

    Every check raises InvariantViolated for a broken rule.
    """

    def __init__(self, state: ClusterState, factory: BrokerFactory) -> None:
        self._state = state
        self._factory = factory

    def repeat_events(self, number: BrokerNumber) -> None:
        """Check I17: the kept events of a broker give a fresh core the same effects."""
        broker = self._state.brokers[number]
        core = self._factory.make_equal_core(number)
        for event, now_ns, effects in broker.history or ():
            again = core.handle(event, now_ns)
            core.next_deadline()
            if again != effects:
                raise InvariantViolated(
                    "purity", f"{broker.name} on {event}: first {effects}, then {again}"
                )

    def recount(self) -> int:
        """Recompute the counters of brokers and clients; the cluster must be at rest.

        Returns:
            The number of recomputed counters.
        """
        recounts = simulation_of(self._state.protocol).recounts
        living = [broker for broker in self._state.staying if broker.alive]
        counted = sum(check_recounts(each.name, each.core, recounts) for each in living)
        clients = self._state.clients.values()
        return counted + sum(check_recounts(each.name, each.core, ()) for each in clients)

    def check_internals(self) -> None:
        """Check the internal state of every broker after random steps."""
        self._state.checker.look_into(self._state.brokers)

    @property
    def broker_events(self) -> int:
        """The number of events that the cores of all brokers have handled."""
        return sum(broker.events for broker in self._state.brokers)
