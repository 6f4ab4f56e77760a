"""Demands on a cluster while links stay broken for ever, and exceptions.

All brokers are alive except lost brokers, and all faults except the broken links have ended. Two
brokers can have a session if no direction between them is broken. The following is demanded, within
the same time as after healing:

- every possible session, connection and answer (`SimulatedCluster.unsettled`);
- every publication of a source at P, for every started subscription at S, if P reaches S; the
  protocol defines reachability by its Reach;
- the acknowledgement of every publication of a source that reaches all subscriptions, started or
  not, unless acknowledgements promise less. (Acknowledgements cover whole runs: one publication for
  an unreached subscription delays its neighbours. A publication for an ended subscription delays
  its neighbours too, because its access broker releases the publication.)
- the start of every subscription, unless the protocol delays the start for unreached brokers:
  missing confirmations are recorded in the tags of the subscription.

Brokers that had not recovered when the links broke may be exempt: the only brokers with the missing
state may have no usable session with them. Nothing is then demanded of their publishers, or of
subscriptions at these brokers.

All exempted deliveries are owed once the links are healed.
"""

from collections.abc import Iterable, Iterator

from brokerd.model.identity import BrokerNumber
from brokerd.simulator.checks.protocol_checks import simulated
from brokerd.simulator.world.cluster import SimulatedCluster

Pair = tuple[BrokerNumber, BrokerNumber]


class WhileBroken:
    """The demands on a cluster with these links broken, from this moment on."""

    def __init__(self, cluster: SimulatedCluster, broken: Iterable[Pair]) -> None:
        self._cluster = cluster
        self._reach = simulated(cluster.protocol).make_reach(
            cluster.graph, cluster.parameters, broken, cluster.gone
        )
        self._let_off = {
            broker.number
            for broker in (cluster.brokers[number] for number in cluster.graph.present)
            if not self._reach.lets_nobody_off and broker.core.status().state != "running"
        }

    def missing(self) -> list[str]:
        """Return the unmet demands, in words."""
        return [
            *self._cluster.unsettled(all_attempts=False, may_ask=self._reach.ends),
            *self._unfinished(),
            *self._undelivered(),
            *self._unacknowledged(),
        ]

    def reaches(self, source: BrokerNumber, home: BrokerNumber) -> bool:
        """Return True if publications of one broker reach another broker."""
        return self._reach.reaches(source, home)

    def _unfinished(self) -> Iterator[str]:
        for number in self._cluster.graph.present:
            broker = self._cluster.brokers[number]
            state = broker.core.status().state
            if state != "running" and broker.number not in self._let_off:
                yield f"{broker.name} is {state}"

    def _undelivered(self) -> Iterator[str]:
        clients = self._cluster.clients
        for subscriber, number, started, lacking in self._cluster.oracle.lacking():
            home = clients[subscriber].broker
            if home in self._let_off or subscriber in self._cluster.held:
                continue
            if not started and self._reach.starts(home):
                yield f"{subscriber}/{number} has not started"
            for publisher, missing in lacking if started else ():
                source = clients[publisher].broker
                if missing and source not in self._let_off and self.reaches(source, home):
                    yield f"{subscriber}/{number} misses {missing[:6]} of {publisher}"

    def _unacknowledged(self) -> Iterator[str]:
        clients = self._cluster.clients
        if self._cluster.held:
            return  # held publications are not acknowledged, and may wait for broken links
        homes = [clients[subscriber].broker for subscriber in self._cluster.oracle.subscribers()]
        for publisher, sequences in self._cluster.oracle.unacknowledged():
            source = clients[publisher].broker
            if source in self._let_off:
                continue
            if self._let_off.isdisjoint(homes) and self._reach.acknowledges(source, homes):
                yield f"{publisher} has not been told that {sequences[:6]} are done"
