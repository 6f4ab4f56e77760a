"""What is owed while links stay broken for ever, and who is let off.

All brokers are alive but those that are gone for ever, every fault but the broken links is over.
Two brokers can have a session when no direction between them is broken. Demanded, within the same
time as after healing:

- every session, connection and answer that can be had (`SimulatedCluster.unsettled`);
- every publication of a source at P, to every subscription at S that has started, where P reaches
  S: what that means is the protocol's own, its Reach;
- "done" for every publication of a source from which all subscriptions are so reached, started
  or not, unless "done" means less. (What is done is said of whole runs: one publication that
  somebody unreached wants keeps its neighbours waiting. So does one for a subscription that has
  ended since: its home lets it pass.)
- the start of every subscription, unless its protocol has it wait for who is not reached: what
  it cannot be confirmed by otherwise stands in its tags.

Brokers that had not recovered yet when the links broke may be let off: whoever could teach them
may be one with which they have no session that is of use. Nothing is demanded of their publishers,
nor of subscriptions at them then.

What was let off is owed once the links are whole again.
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
        """What is demanded and not there, in words."""
        return [
            *self._cluster.unsettled(all_attempts=False, may_ask=self._reach.ends),
            *self._unfinished(),
            *self._undelivered(),
            *self._unacknowledged(),
        ]

    def reaches(self, source: BrokerNumber, home: BrokerNumber) -> bool:
        """Whether publications get from one broker to another."""
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
            return  # what is held is not done, and holding may wait for what is broken
        homes = [clients[subscriber].broker for subscriber in self._cluster.oracle.subscribers()]
        for publisher, sequences in self._cluster.oracle.unacknowledged():
            source = clients[publisher].broker
            if source in self._let_off:
                continue
            if self._let_off.isdisjoint(homes) and self._reach.acknowledges(source, homes):
                yield f"{publisher} has not been told that {sequences[:6]} are done"
