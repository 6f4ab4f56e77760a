"""Fuzzed clients beside honest clients, at the brokers of a simulated cluster."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from random import Random
from typing import Any, Final

from brokerd.client.core import ClientCore
from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import Connect, Deliveries, Detach
from brokerd.model.identity import BrokerNumber, ClientId, Peer
from brokerd.overlay.topology import Topology
from brokerd.protocols.interface import Event, LossReason, MessageReceived
from brokerd.protocols.registry import definition_of, parameters_on
from brokerd.simulator.world.broker import SimulatedBroker
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.simulator.world.handles import Subscription
from brokerd.simulator.world.sessions import Endpoint, SessionEnd
from brokerd.units import SECOND_NS
from tests.fuzz.client_script import ClientScript
from tests.fuzz.values import any_message
from tests.helpers.cluster import STEADY
from tests.helpers.every_protocol import HOMES, three_brokers

LINGER_S: Final = 2
HONEST: Final = "honest exists"
_NEWEST: Final = 100
_KEEP_SUBSCRIPTIONS: Final = ("ges_reliable",)
"""Protocols that keep subscriptions until the clients end the subscriptions."""


class FuzzedClient(Endpoint):
    """A client at a broker; a script and a seed decide its messages.

    Attributes:
        refusals: the reasons for the ends of its sessions, in order.
        deliveries: the number of received messages with publications.
    """

    def __init__(self, name: ClientId, broker: BrokerNumber, cluster: SimulatedCluster) -> None:
        super().__init__(name)
        self.alive = True
        self.incarnation = 1
        self.broker = broker
        self.refusals: list[str] = []
        self.deliveries = 0
        self.script: ClientScript
        self._network = cluster.network
        cluster.network.endpoints[name] = self

    def dial(self) -> None:
        self._network.open(self, self.broker)

    def hang_up(self) -> None:
        self._network.close(self, self.broker, "closed_by_us")

    def say(self, message: Any) -> None:
        with contextlib.suppress(RemoteProtocolError):  # no broker would decode it
            self._network.send(self, self.broker, message)

    def on_established(self, end: SessionEnd, incarnation: int) -> None:
        """See Endpoint."""
        self.script.begin()

    def on_lost(self, end: SessionEnd, reason: LossReason) -> None:
        """See Endpoint."""

    def open_failed(self, peer: Peer, reason: str) -> None:
        """See Endpoint."""

    def message_arrived(self, end: SessionEnd, message: Any) -> None:
        """See Endpoint."""
        self.deliveries += isinstance(message, Deliveries)
        self.script.heard(message)


def _refusal(handle: Callable[[Event], None], event: Event) -> RemoteProtocolError | None:
    try:
        handle(event)
    except RemoteProtocolError as error:
        return error
    return None


class FuzzedCluster:
    """Three brokers of a protocol, a fuzzed client at every home, and honest clients beside them.

    Args:
        topology: other brokers than three in a row.
        homes: the brokers with clients.
        roams: true if fuzzed clients move to other brokers more often.
        parameters: parameters of the protocol, beside a short linger.

    Attributes:
        messages: the number of messages of the fuzzed clients.
        is_lossless: true if brokers may restart without a loss.
    """

    def __init__(
        self,
        protocol: str,
        random: Random,
        *,
        topology: Topology | None = None,
        homes: Sequence[str] = HOMES,
        roams: bool = False,
        **parameters: Any,
    ) -> None:
        self.protocol = protocol
        self.messages = 0
        self._random = random
        names = [each.name for each in fields(definition_of(protocol).parameters)]
        if "client_linger_ns" in names and protocol not in _KEEP_SUBSCRIPTIONS:
            parameters["client_linger_ns"] = LINGER_S * SECOND_NS
        self.is_lossless = definition_of(protocol).promises.exactly_once
        self._homes = tuple(homes)
        self._roams = roams
        topology = topology or three_brokers(protocol, **parameters)
        self.cluster = cluster = SimulatedCluster(
            topology,
            protocol,
            network=replace(STEADY, encode=True),
            strict=False,
            trace=False,
            parameters=parameters_on(topology, protocol),
        )
        for broker in cluster.brokers:
            broker.history = []
        cluster.start()
        cluster.run_for(1)
        self.fuzzed: list[FuzzedClient] = []
        for number, home in enumerate(homes):
            client = FuzzedClient(f"h{number}", cluster.topology.number_of(home), cluster)
            consumes = definition_of(protocol).promises.keeps_committed
            client.script = ClientScript(random, publishes=True, consumes=consumes)
            self.fuzzed.append(client)
        for broker in cluster.brokers:
            self._refuse_as_a_driver_does(broker)
        self.subscriptions = [cluster.subscribe(home, HONEST) for home in homes]
        cluster.run_for(2)
        assert all(each.started for each in self.subscriptions)

    def _refuse_as_a_driver_does(self, broker: SimulatedBroker) -> None:
        """Close the session of a fuzzed client after a refusal; no other peer is refused."""
        handle_one: Callable[[Event], None] = broker._handle_one
        by_name = {client.key: client for client in self.fuzzed}
        refused: set[tuple[int, Peer, int]] = set()

        def guarded(event: Event) -> None:
            life = broker.incarnation
            if isinstance(event, MessageReceived) and (life, event.peer, event.session) in refused:
                return
            error = _refusal(handle_one, event)
            if error is None:
                return
            reason = error.reason
            assert isinstance(event, MessageReceived), f"{event} was refused: {reason}"
            assert event.peer in by_name, f"an honest peer was refused: {event}: {reason}"
            # Otherwise the broker's own reaction to the event is an invalid message.
            assert error.peer == event.peer, f"{event}: {error}"
            refused.add((life, event.peer, event.session))
            by_name[event.peer].refusals.append(reason)
            self.cluster.network.close(broker, event.peer, "protocol_error")

        broker._handle_one = guarded  # type: ignore[method-assign]

    def step(self) -> None:
        """Perform one random action."""
        random, client = self._random, self._random.choice(self.fuzzed)
        draw = random.random()
        if not client.ends and draw < 0.5:
            client.dial()
        elif draw < 0.80:
            message = any_message(random) if random.random() < 0.005 else client.script.message()
            if message is not None:
                self.messages += 1
                client.say(message)
        elif draw < 0.81 - 0.008 * self._roams:
            client.hang_up()
        elif draw < 0.815:  # under its name, at another broker
            client.hang_up()
            client.broker = self.cluster.topology.number_of(random.choice(self._homes))
        elif draw < 0.85:
            self.cluster.publish(
                random.choice(self._homes), honest=True, kind=random.choice((1, "a"))
            )
        elif draw < 0.854:
            self.cluster.run_for(LINGER_S * random.choice((0.3, 1.2)))
        elif draw < 0.858 and self.is_lossless:
            broker = random.choice(self.cluster.topology.brokers)
            self.cluster.broker(broker).restart()
        else:
            self.cluster.run_for(random.choice((0.001, 0.003, 0.02, 0.1)))

    @property
    def hostile_deliveries(self) -> int:
        """Return the number of messages with publications that the fuzzed clients received."""
        return sum(client.deliveries for client in self.fuzzed)

    def end(self) -> list[str]:
        """Disconnect the fuzzed clients; return all violations that honest clients have seen."""
        for client in self.fuzzed:
            client.hang_up()
        self.cluster.run_for(3 * LINGER_S + 10)
        oracle = self.cluster.oracle
        for broker in self.cluster.brokers:
            broker.core.status()
            broker.core.statistics()
        return [*oracle.first_violations, *oracle.obligations.describe_undelivered()]

    def repeat(self) -> None:
        """Replay every broker without the refused messages; the effects must be equal."""
        for broker in self.cluster.brokers:
            self.cluster.inspection.repeat_events(broker.number)

    def take_in(self, client: FuzzedClient) -> Subscription:
        """Replace a fuzzed client by an honest client of the same name, and subscribe.

        The honest client is newer than the fuzzed client was at any broker.
        """
        name, home = str(client.key), self.cluster.brokers[client.broker].name
        client.dial()
        self.cluster.run_for(0.1)
        client.say(Connect(False, _NEWEST - 1, 1, 0, ()))
        self.cluster.run_for(0.5)
        client.say(Detach(drain=False, done_through=0))
        self.cluster.run_for(0.5)
        client.hang_up()
        self.cluster.run_for(0.5)
        del self.cluster.network.endpoints[name]
        core = ClientCore(name, publishes=False, incarnation=_NEWEST)
        self.cluster.population.add(name, home, publishes=False, core=core)
        subscription = self.cluster.subscribe(home, HONEST, name)
        self.cluster.run_for(5)
        return subscription
