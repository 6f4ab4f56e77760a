"""Redirects of clients to other brokers of their cluster, by numbers of clients.

Linked brokers of a cluster exchange the number of their clients when it has changed by a step, and
at most once per look. A broker with more clients than the limit, and enough more than a neighbour,
redirects the last arrived clients to that neighbour. A received number lags behind the true
number: no client is sent to a broker that may have as many, and a redirected client counts at its
destination.

Paper: [GES] §1, §6 (induced roaming; the paper's prototype does not have it).
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, ClientId, Peer
from brokerd.overlay.hierarchy import Address, Hierarchy
from brokerd.protocols.ges.connectivity_graph import GraphView
from brokerd.protocols.ges.messages import ClientsCounted
from brokerd.protocols.ges.parameters import READDRESS, STAY, HintParameters
from brokerd.protocols.ges.state import Neighbours, Outcome, Refusal, Separation
from brokerd.protocols.interface import Effect, Instant, RedirectClient, Send
from brokerd.protocols.parts.deadlines import DeadlineQueue

HINT: Final = "hint"
"""Purpose of the deadline at which a broker checks for too many clients."""

CHECKS_TO_DEPART: Final = 4
"""Looks for which a redirected client counts as departed; after that, as staying by choice."""
CHECKS_TO_STAY: Final = 32
"""Looks for which a client is not redirected again."""
STEPS: Final = 8
"""Numbers are sent after changes by the limit divided by this, or by one."""


@dataclass(frozen=True, slots=True)
class _Redirect:
    """The redirect of a client: its time, and the broker to go to."""

    at_ns: Instant
    to: BrokerNumber


class RoamingHints:
    """The redirects of a broker's clients by numbers of clients."""

    def __init__(
        self,
        broker: BrokerNumber,
        neighbours: Neighbours,
        deadlines: DeadlineQueue[tuple[str, Peer]],
        parameters: HintParameters,
    ) -> None:
        self.counters = {"clients_redirected": 0, "client_counts_told": 0}
        self._neighbours = neighbours
        self._deadlines = deadlines
        self._deadline = HINT, broker
        self._limit = parameters.roam_clients_above
        self._check_ns = parameters.roam_check_ns
        self._step = max(1, self._limit // STEPS)
        self._announced = 0
        self._announcements: dict[BrokerNumber, int] = {}
        self._redirects: dict[ClientId, _Redirect] = {}

    def on_change(self, now_ns: Instant) -> None:
        """Schedule a look after the number of clients here or at a neighbour has changed."""
        if self._limit and self._deadline not in self._deadlines:
            self._deadlines.set(self._deadline, now_ns + self._check_ns)

    def on_session(self, peer: BrokerNumber) -> list[Send]:
        """Send the number of clients to a neighbour with a new session."""
        if self._limit and self._neighbours.is_in_cluster(peer):
            return [self._announce(peer)]
        return []

    def on_session_lost(self, peer: BrokerNumber) -> None:
        """Forget the number of a neighbour without a session; no client is sent there."""
        self._announcements.pop(peer, None)

    def on_counted(self, peer: BrokerNumber, message: ClientsCounted, now_ns: Instant) -> None:
        """Record the approximate number of clients of a neighbour.

        Raises:
            RemoteProtocolError: the neighbour is of another cluster, or the number is negative;
                the fault of the neighbour.
        """
        if not self._neighbours.is_in_cluster(peer) or message.clients < 0:
            raise RemoteProtocolError(
                peer, f"{message} of another cluster, or with a negative number"
            )
        self._announcements[peer] = message.clients
        self.on_change(now_ns)

    def look(self, here: Sequence[ClientId], now_ns: Instant) -> list[Effect]:
        """Send the number of clients if it has changed by a step, and redirect clients.

        Args:
            here: the clients of this broker, in order of arrival.
        """
        effects: list[Effect] = []
        if abs(len(here) - self._announced) >= self._step:
            self._announced = len(here)
            effects += [self._announce(peer) for peer in self._linked_neighbours()]
        oldest_ns = now_ns - CHECKS_TO_STAY * self._check_ns
        self._redirects = {
            name: redirect
            for name, redirect in self._redirects.items()
            if redirect.at_ns > oldest_ns
        }
        effects += self._redirect(here, now_ns)
        if self._list_redirected(now_ns):
            self.on_change(now_ns)
        return effects

    def _redirect(self, here: Sequence[ClientId], now_ns: Instant) -> list[RedirectClient]:
        """Redirect the last arrived clients, to the broker with the fewest clients.

        No broker is made worse than this broker. A neighbour may by now have almost a step more
        clients than reported.
        """
        redirects: list[RedirectClient] = []
        going = self._list_redirected(now_ns)
        staying = [name for name in here if name not in going]
        left, may_have = len(staying), {}
        for peer in self._linked_neighbours():
            if peer in self._announcements:
                under_way = sum(redirect.to == peer for redirect in going.values())
                may_have[peer] = self._announcements[peer] + self._step - 1 + under_way
        for name in reversed(staying):
            better = [peer for peer, number in may_have.items() if number + 2 <= left]
            if left <= self._limit or not better:
                break
            if name not in self._redirects:
                better.sort(key=lambda peer: (may_have[peer], peer))
                self._redirects[name] = _Redirect(now_ns, better[0])
                redirects.append(RedirectClient(name, tuple(better)))
                self.counters["clients_redirected"] += 1
                may_have[better[0]] += 1
                left -= 1
        return redirects

    def _list_redirected(self, now_ns: Instant) -> dict[ClientId, _Redirect]:
        """Return clients that were redirected a short while ago."""
        since_ns = now_ns - CHECKS_TO_DEPART * self._check_ns
        return {
            name: redirect
            for name, redirect in self._redirects.items()
            if redirect.at_ns > since_ns
        }

    def _linked_neighbours(self) -> list[BrokerNumber]:
        """Return the linked neighbours in the cluster."""
        near = self._neighbours
        return [each for each in near.addresses if near.is_in_cluster(each) and each in near.linked]

    def _announce(self, peer: BrokerNumber) -> Send:
        self.counters["client_counts_told"] += 1
        return Send(peer, ClientsCounted(self._announced))


APART: Final = "apart"
"""Purpose of the deadline at which the rest of the cluster has been out of reach for long."""

MOST_DOUBLINGS: Final = 6
"""The most doublings of the wait of a broker that leaves and returns repeatedly."""

REFUSAL: Final = "this broker is cut off from the rest of its cluster; try another one, or later"


class Fragment:
    """The part of its cluster that one broker is in.

    Attributes:
        is_closed: True while this part takes no new clients.
        members: the members of the cluster by address, from the topology.
        counters: for statistics.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        neighbours: Neighbours,
        deadlines: DeadlineQueue[tuple[str, Peer]],
        parameters: HintParameters,
        wait_ns: int,
        view: GraphView,
    ) -> None:
        place = neighbours.place
        self.is_closed = False
        self.counters = {
            "partitioned_clients_redirected": 0,
            "clusters_partitioned": 0,
            "members_failed": 0,
        }
        self._policy = parameters.partition_policy
        self._home = place.address
        self._stays_until_ns = 0
        self._waits_since_ns = 0
        self._is_first = False
        self._returns = 0
        self._deadline = APART, broker
        self._place = place
        self._view = view
        self._neighbours = neighbours
        self._deadlines = deadlines
        self._wait_ns = wait_ns
        self.members: dict[Address, BrokerNumber] = {}
        self._near: tuple[BrokerNumber, ...] = ()
        self._redirected: dict[ClientId, None] = {}
        self._failed: dict[Address, None] = {}
        self._checked_changes = -1

    def use(self, hierarchy: Hierarchy, near: Collection[BrokerNumber]) -> None:
        """Take the members of the cluster from a topology, and the neighbours of this broker."""
        cluster = self._home[:-1]
        addresses = hierarchy.addresses
        present = [each for each in hierarchy.present if addresses[each][: len(cluster)] == cluster]
        self.members = {addresses[each]: each for each in present}
        self._near = tuple(near)
        self._checked_changes = -1

    def look(self, now_ns: Instant) -> list[Refusal]:
        """Compare this part with the cluster after a change of the graph or of the members."""
        if self._policy == STAY or self._checked_changes == self._view.changes:
            return []
        self._checked_changes = self._view.changes
        if self._place.address != self._home:
            self._deadlines.cancel(self._deadline)
            return []
        part = self._part()
        self._failed = {each: None for each in self._failed if each not in part}
        counted = [each for each in self.members if each not in self._failed]
        if min(counted, default=self._home) in part:
            self._deadlines.cancel(self._deadline)
            self._returns = 0
            if self.is_closed:
                self.is_closed = False
                self._redirected.clear()
                return [Refusal("")]
        elif not self.is_closed:
            self._wait_for_lowest(now_ns)
        return []

    def _wait_for_lowest(self, now_ns: Instant) -> None:
        """Begin the wait for the lowest member, or lengthen it.

        In a part that is to be readdressed, the others wait for the lowest member of the part to
        go first, also if the part had other members when the wait began. A broker that returned,
        and left again before reaching the lowest member, waits twice as long every time: sessions
        may take longer to open than `purge_ns`.
        """
        is_first = self._policy != READDRESS or self._home == min(self._part())
        wait_ns = self._wait_ns << min(self._returns, MOST_DOUBLINGS)
        if self._deadline not in self._deadlines:
            self._is_first = is_first
            self._waits_since_ns = now_ns
            self._deadlines.set(
                self._deadline, now_ns + (wait_ns if is_first else wait_ns * 3 // 2)
            )
        elif self._is_first and not is_first:
            self._is_first = False
            self._deadlines.set(self._deadline, self._waits_since_ns + wait_ns * 3 // 2)

    def on_wait_end(self, clients: Iterable[ClientId], now_ns: Instant) -> list[Outcome]:
        """Close this part to clients, or move it, or reopen it `purge_ns` after it closed.

        Paper: [GES] §4, §6 (a broker may fail for ever, and clients are not denied service).
        """
        if self.is_closed:
            part = self._part()
            self._failed = {each: None for each in self.members if each not in part}
            self.counters["members_failed"] += len(self._failed)
            self._checked_changes = -1
            return [*self.look(now_ns)]
        self.counters["clusters_partitioned"] += 1
        if self._policy == READDRESS:
            return [Separation(tuple(self._part()))]
        self.is_closed = True
        self._deadlines.set(self._deadline, now_ns + self._wait_ns)
        return [Refusal(REFUSAL), *self.send_out(clients)]

    def can_follow(self, now_ns: Instant) -> bool:
        """Return True while this broker is partitioned and may follow a broker of its part."""
        return self._deadline in self._deadlines and now_ns >= self._stays_until_ns

    def on_return(self, now_ns: Instant) -> None:
        """Note a return to the cluster before the lowest member has become reachable."""
        self._returns += 1
        wait_ns = self._wait_ns << min(self._returns, MOST_DOUBLINGS)
        self._stays_until_ns = now_ns + wait_ns // 2
        self._checked_changes = -1

    def send_out(self, clients: Iterable[ClientId]) -> list[RedirectClient]:
        """Redirect clients: to brokers beyond the cluster, or across the partition.

        Brokers beyond the cluster that have a session are first; the state of those across is
        unknown.
        """
        if not self.is_closed:
            return []
        part = self._part()
        beyond = [each for each in self._near if each not in self.members.values()]
        beyond = [each for each in beyond if each in self._neighbours.linked]
        across = [each for address, each in sorted(self.members.items()) if address not in part]
        redirects: list[RedirectClient] = []
        for name in clients:
            if name not in self._redirected and (beyond or across):
                self._redirected[name] = None
                redirects.append(RedirectClient(name, (*beyond, *across)))
                self.counters["partitioned_clients_redirected"] += 1
        return redirects

    def _part(self) -> dict[Address, None]:
        """Return the members that this broker reaches over links of the cluster, with itself."""
        found = {self._place.address: None}
        waiting = [self._place.address]
        while waiting:
            for other in self._view.near(waiting.pop()):
                if other in self.members and other not in found:
                    found[other] = None
                    waiting.append(other)
        return found
