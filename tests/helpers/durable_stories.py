"""Stories of durable subscriptions: disconnected clients, and the state that brokers keep."""

from brokerd.errors import StorageCorrupt
from brokerd.model.client_messages import Deliveries
from brokerd.model.identity import StreamId
from brokerd.protocols.durable.core import Durable
from brokerd.protocols.durable.parameters import DurableParameters
from brokerd.protocols.durable.state import Mode
from brokerd.protocols.interface import Deliver
from brokerd.protocols.registry import definition_of
from brokerd.simulator.checks.protocol_checks import ProtocolChecks
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.disk import SimulatedLogs
from brokerd.simulator.world.handles import PublicationHandle, Subscription
from brokerd.wire.attributes import encode_attributes
from tests.helpers.gryphon_stories import Story, cells


def fails(story, *arguments, **parameters) -> bool:
    """Return whether a story fails, or breaks a rule."""
    try:
        return not story(*arguments, **parameters)
    except (AssertionError, InvariantViolated, StorageCorrupt):
        return True


class DurableStory(Story):
    """A gryphon story with the durable protocol. See Story.

    Brokers store no events that have passed them, unless a story sets the limit: the publishers'
    broker sends every missed event again.
    """

    protocol = "durable"
    parameters = DurableParameters
    looks_inside = False
    """Whether the state of brokers is compared with the disks after each step."""

    def __init__(self, *bundles: str, **parameters) -> None:
        self.given: list[Deliver] = []
        super().__init__(*bundles, **{"passed_limit_bytes": 0, **parameters})
        if self.looks_inside:
            self.cluster.checker.looks_at = self.cluster.brokers

    def _watch(self, broker, event, effects) -> None:
        super()._watch(broker, event, effects)
        self.given += [effect for effect in effects if type(effect) is Deliver]

    @staticmethod
    def blob(kind: str) -> bytes:
        """Return the attributes of a publication."""
        return encode_attributes({"kind": kind})

    def subscriber(self, at: str = "s1", predicate: str = "true") -> Subscription:
        """Return a subscription that has started, of a new client."""
        subscription = self.cluster.subscribe(at, predicate)
        self.cluster.run_until_quiet()
        return subscription

    def away(self, subscription: Subscription, at: str = "s1"):
        """Cut a client's link and return it. The client reconnects once the link is healed."""
        link = self.cluster.link(subscription.client.name, at)
        link.cut()
        self.cluster.run_for(1)
        return link

    def told(self, subscription: Subscription) -> list[tuple[int, int]]:
        """Return the gaps of a subscription: first and last sequence."""
        return [
            (gap.first, gap.last)
            for gap in subscription.client.gaps
            if gap.number == subscription.number
        ]

    def ticks_of(self, subscription: Subscription) -> dict[PublicationHandle, int]:
        """Return the ticks of the publications that a client received."""
        found = {}
        for item in [each.item for each in self.given if each.client == subscription.client.name]:
            ticks = iter(item.run.sequences if type(item) is Deliveries else ())
            for source, sequences in item.run.origins if type(item) is Deliveries else ():
                name = self.cluster.state.name_of(source)
                found |= {PublicationHandle(name, each): next(ticks) for each in sequences}
        return found

    def steady_clocks(self) -> None:
        """Stop the clock steps of brokers during downtime."""
        clocks = self.cluster.factory.wall_clocks
        clocks.read_at_start = lambda broker, now_ns: clocks._ahead_ns[broker] + now_ns

    def kill(self, broker: str, kept: int) -> None:
        """Crash a broker; of the changes that are not durable, keep only `kept`."""
        self.cluster.broker(broker).broker.kill(kept)

    def taken(self, subscription: Subscription) -> dict:
        """Return a client's committed positions, as a dict that the story may change."""
        return subscription.client.core.progress._commitment.positions()

    def add_broker(self, name: str, *bundles: str) -> None:
        """Restart all brokers with one more broker, which has new pubends.

        The checks of brokers against their disks end.
        """
        cluster = self.cluster
        for broker in self.alive():
            broker.kill()
        cluster.state.change(cells(*bundles))
        definition = definition_of(self.protocol)
        cluster.factory.logs = definition.all_logs(cluster.topology, cluster.parameters)
        cluster.factory.add_broker(name)
        for broker in cluster.brokers:
            logs = SimulatedLogs(cluster.factory.logs)
            logs._logs |= broker.disk._logs._logs
            logs.crash()
            broker.disk._logs = logs
        cluster.checker.own = ProtocolChecks(cluster.checker.own.world)
        for broker in cluster.brokers:
            broker.start()

    def mode(self, subscription: Subscription, pubend: int = 0, at: str = "s1") -> Mode:
        """Return the mode in which a broker feeds a subscription from a pubend of p1."""
        subscriptions = self.core(at).registered.present.values()
        (local,) = (
            each
            for each in subscriptions
            if (each.client, each.number) == (subscription.client.name, subscription.number)
        )
        return local.lane(StreamId(self.cluster.topology.number_of("p1"), pubend, 0)).mode

    def core(self, broker: str) -> Durable:
        core = self.cluster.broker(broker).broker.core
        assert isinstance(core, Durable)
        return core

    def kept(self, broker: str) -> int:
        """Return the number of publications in a broker's memory."""
        return sum(each.knowledge.events.events for each in self.core(broker).gryphon.streams)

    def logged(self, broker: str, log: str = "events") -> int:
        """Return the number of records in a broker's log."""
        ends = self.cluster.broker(broker).broker.disk.ends()[log]
        return ends.next - ends.first
