"""What is owed while links stay broken for ever, and who is let off.

All brokers are alive, every fault but the broken links is over. Two brokers can have a session
when no direction between them is broken. Demanded, within the same time as after healing:

- every session, connection and answer that can be had (`SimulatedCluster.unsettled`);
- every publication of a source at P, to every subscription at S that has started, where the
  walk of next hops from P reaches S: each broker hands over to the first one on its path to S
  that it can have a session with, at most δ + 1 links away. Nothing is demanded where some
  broker on the walk has nobody to hand over to. That is the paper's own limit: activity is
  one-sided, so a broker next to a broken link may be handed what it cannot pass on;
- "done" for every publication of a source from which all subscriptions are so reached, started
  or not. (What is done is said of whole runs: one publication that somebody unreached wants
  keeps its neighbours waiting. So does one for a subscription that has ended since: its home
  lets it pass.)
- the start of every subscription: what it cannot be confirmed by stands in its tags.

With relayed sessions the one-sidedness is gone. A broken link counts as whole for the walk where
its ends are sure to meet through a third broker: both are asked to reach each other through δ
brokers within δ + 1 links of both, if there are so many, and which of them is not said. So it is
sure when fewer than δ of those have a broken link with either end. With at most δ links broken
that is always so, in a tree of δ + 2 brokers or more: all is owed then, starts included, and
nobody is let off.

Without them, let off are brokers that had not recovered yet when a link of the tree broke:
whoever could teach them may be one with which they have a session that is not active at its end.
Nothing is demanded of their publishers, nor of subscriptions at them.

What was let off is owed once the links are whole again.

Paper: [DFT11] §II (one-sided activity), §VI lines 646-652 (next hop).
"""

from collections.abc import Iterable, Iterator

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.tree import PrimaryTree
from brokerd.protocols.registry import definition_of
from brokerd.simulator.world.cluster import SimulatedCluster

Pair = tuple[BrokerNumber, BrokerNumber]


class WhileBroken:
    """The demands on a cluster with these links broken, from this moment on."""

    def __init__(self, cluster: SimulatedCluster, broken: Iterable[Pair]) -> None:
        self._cluster = cluster
        self._tree: PrimaryTree = cluster.tree
        self._radius = cluster.topology.delta + 1
        self._broken = {(min(pair), max(pair)) for pair in broken}
        self._assisted = definition_of(cluster.protocol).bypasses_links(cluster.parameters)
        self._tree_is_whole = all(
            self._tree.distance(a, b) > 1 or self._is_bridged(a, b) for a, b in sorted(self._broken)
        )
        self._let_off = {
            broker.number
            for broker in (cluster.brokers[number] for number in cluster.tree.present)
            if not self._tree_is_whole and broker.core.status()["state"] != "running"
        }
        self._reached: dict[Pair, bool] = {}

    def missing(self) -> list[str]:
        """What is demanded and not there, in words."""
        return [
            *self._cluster.unsettled(all_attempts=False),
            *self._unfinished(),
            *self._undelivered(),
            *self._unacknowledged(),
        ]

    def reaches(self, source: BrokerNumber, home: BrokerNumber) -> bool:
        """Whether publications get from one broker to another."""
        pair = source, home
        found = self._reached.get(pair)
        if found is None:
            found = self._reached[pair] = self._walk(source, home)
        return found

    def _walk(self, source: BrokerNumber, home: BrokerNumber) -> bool:
        path = self._tree.path(source, home)
        while len(path) > 1:
            for place, broker in enumerate(path[1 : self._radius + 1], 1):
                if self._is_open(path[0], broker) or self._is_bridged(path[0], broker):
                    path = path[place:]
                    break
                if self._assisted and self._relays(path[0], broker)[0]:
                    return False  # they may meet or not
            else:
                return False
        return True

    def _is_open(self, a: BrokerNumber, b: BrokerNumber) -> bool:
        return (min(a, b), max(a, b)) not in self._broken

    def _is_bridged(self, a: BrokerNumber, b: BrokerNumber) -> bool:
        """Whether two brokers whose link is broken are sure to meet through a third one."""
        if not self._assisted:
            return False
        able, unable = self._relays(a, b)
        return able > 0 and unable < self._radius - 1

    def _relays(self, a: BrokerNumber, b: BrokerNumber) -> tuple[int, int]:
        """How many brokers near both could relay, and how many cannot."""
        near_b = self._tree.ball(b, self._radius)
        both = [c for c in self._tree.ball(a, self._radius) if c in near_b and c != b]
        able = sum(self._is_open(a, c) and self._is_open(c, b) for c in both)
        return able, len(both) - able

    def _unfinished(self) -> Iterator[str]:
        for number in self._tree.present:
            broker = self._cluster.brokers[number]
            state = broker.core.status()["state"]
            if state != "running" and broker.number not in self._let_off:
                yield f"{broker.name} is {state}"

    def _undelivered(self) -> Iterator[str]:
        clients = self._cluster.clients
        for subscriber, number, started, lacking in self._cluster.oracle.lacking():
            home = clients[subscriber].broker
            if home in self._let_off or subscriber in self._cluster.held:
                continue
            if not started:
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
            if all(home not in self._let_off and self.reaches(source, home) for home in homes):
                yield f"{publisher} has not been told that {sequences[:6]} are done"
