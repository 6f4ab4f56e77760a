"""Reduction of the interleavings of a world: which actions a search may leave out in a state.

Every action belongs to processes: brokers and clients whose state the action reads or changes. Two
actions without a common process commute, because an action only appends to the lanes of others.

`is_independent` is the relation of the sleep sets, which leave out transitions. `choose` returns a
persistent set, which leaves out states: all actions of a group of brokers that no other process can
interfere with. Another process interferes if it may act before the group, and may begin a new
action at the group: by a message on an empty lane, or by a session. A pending message in its lane
prevents interference, because the message is received first.

A group has no visible action: no request of a client, and no start of a subscription before the
last publication, because the order of both decides what is owed. If an acknowledgement means that
all subscribers have the publication, checks read the deliveries to clients, and each delivery only
permits more. Then deliveries are visible: an acknowledgement that is too early must be found before
the delivery, and no group may decide in favour of the delivery.

Two steps of a client need no group. A client that has lost its session dials again, and a client
whose broker has closed the session notices the close: nothing else depends on the moment. A dial at
a dead broker is refused, and the client dials again. So this dial waits until the restart.

A fault may interfere with everything, and with the other faults. A search therefore plans in
advance at which process the next fault will happen, and repeats itself for each process. Faults of
links are planned together, and are not reduced.

Paper: Godefroid, "Partial-Order Methods for the Verification of Concurrent Systems" (1996), §4
(persistent sets); Flanagan and Godefroid, "Dynamic partial-order reduction" (POPL 2005).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from brokerd.model.client_messages import Connected, Deliveries, PublishAcknowledged, Subscribed
from brokerd.model.identity import Peer
from brokerd.simulator.search.exploration.small_world import LINKS, PUBLISHER, WorldState
from brokerd.simulator.world.actions import Action, is_lane, peer_of, processes_of
from brokerd.simulator.world.clock import Lane
from brokerd.simulator.world.sessions import SessionEnd

Group = frozenset[Peer]

_INVISIBLE: Final = (Connected, PublishAcknowledged)
"""Messages to clients that no later check of a broker or of another client reads, in any world."""


def is_independent(one: Action, other: Action) -> bool:
    """Return True if two actions are of lanes into different brokers, so that they commute."""
    here, there = _broker_of(one), _broker_of(other)
    return here is not None and there is not None and here != there


def _broker_of(action: Action) -> Peer | None:
    """Return the only broker that an action changes; None for all other actions."""
    found = processes_of(action) if is_lane(action) else ()
    return found[0] if len(found) == 1 and isinstance(found[0], int) else None


def choose(state: WorldState, enabled: Sequence[Action]) -> list[Action]:
    """Return a persistent set of the enabled actions; all of them if no smaller set is found."""
    lanes = state.acted.schedule.ready_lanes()
    best = [action for action in enabled if not _is_refused(state, action)]
    if not state.acted.link_faults.cut_directions():
        for action in best:
            if is_lane(action) and _is_private(state, lanes[action[0]]):
                return [action]
    visible = _find_visible(state, lanes, enabled)
    if len(visible) == len(best):
        return best
    spent, world = state.spent, state.world
    if (
        spent.early < world.early
        or spent.planned == LINKS
        or state.acted.link_faults.cut_directions()
    ):
        return best
    if spent.faults < world.faults and not spent.planned:
        return best
    owners = {action: frozenset(processes_of(action)) for action in best}
    if not all(owners.values()):
        return best
    neighbourhood = Neighbourhood(state)
    for start in dict.fromkeys(process for each in owners.values() for process in each):
        group = neighbourhood.close(frozenset((start,)), owners)
        found = [action for action in owners if owners[action] & group]
        if found and len(found) < len(best) and not any(each in visible for each in found):
            best = found
    return best


def _is_private(state: WorldState, lane: Lane) -> bool:
    """Return True if a client dials again, or notices that its broker has closed the session."""
    action, arguments = lane.queue[0]
    name = lane.name.partition(":")[0].rpartition(">")[2]
    client = state.acted.clients.get(name)
    if client is None:
        return False
    if action.__name__ == "dial":
        return not client.connected
    return action.__name__ == "_close_arrives" and bool(arguments[0].up)


def _is_refused(state: WorldState, action: Action) -> bool:
    """Return True if a client dials a dead broker."""
    name, _, rest = str(action[0]).partition(":dials:")
    broker = rest.partition("#")[0]
    return name in state.acted.clients and bool(rest) and not state.acted.brokers[int(broker)].alive


def _find_visible(
    state: WorldState, lanes: Mapping[str, Lane], enabled: Iterable[Action]
) -> dict[Action, None]:
    """Return the actions that checks read: requests of clients, and deliveries to clients."""
    found = {action: None for action in enabled if action[0] in ("publish", "subscribe")}
    oracle = state.acted.oracle
    if not oracle.reliable or oracle.logged:
        has_more = state.spent.published < state.world.publications
        invisible = (*_INVISIBLE, Deliveries, *(() if has_more else (Subscribed,)))
    else:
        has_more, invisible = True, _INVISIBLE
    if has_more and not state.world.has_lag:
        # A subscriber without lag receives within the action of its broker.
        homes = {
            client.broker for client in state.acted.clients.values() if client.name != PUBLISHER
        }
        found |= dict.fromkeys(each for each in enabled if homes & {*processes_of(each)})
    for name, lane in lanes.items():
        receiver = name.partition("#")[0].rpartition(">")[2]
        if receiver in state.acted.clients and lane.queue[0][0].__name__ == "arrives":
            _, message = lane.queue[0][1]
            if not isinstance(message, invisible):
                found[name,] = None
    return found


class Neighbourhood:
    """The processes of one state, with the processes that each may interfere with."""

    def __init__(self, state: WorldState) -> None:
        acted, spent, world = state.acted, state.spent, state.world
        graph = acted.cluster.state.graph
        self._endpoints = acted.network.endpoints
        self._near: dict[Peer, dict[Peer, None]] = {key: {} for key in self._endpoints}
        for broker in acted.brokers:
            peers = (*graph.near(broker.number), *broker.ends, *broker.attempts)
            for peer in (*peers, *(end.peer for end in broker.connected)):
                self._join(broker.number, peer)
        for client in acted.clients.values():
            self._join(client.name, client.broker)
        self._always: set[Peer] = {broker.number for broker in acted.brokers if not broker.alive}
        if spent.published < world.publications:
            self._always.add(PUBLISHER)
        for name, _ in world.subscribers(acted.scene.topology)[spent.subscribed :]:
            self._always.add(name)
        self._planned = peer_of(spent.planned)
        if spent.planned:
            self._always.add(self._planned)

    def _join(self, one: Peer, other: Peer) -> None:
        self._near[one][other] = None
        self._near[other][one] = None

    def close(self, group: Group, owners: dict[Action, Group]) -> Group:
        """Return the smallest group around a group that no other process interferes with."""
        while True:
            shared = {each for own in owners.values() if own & group for each in own}
            more = shared | {
                process
                for process in self._active(group, owners)
                if any(
                    near in group and not self._is_blocked(process, near)
                    for near in self._near[process]
                )
            }
            if more <= group:
                return group
            group |= more

    def _active(self, group: Group, owners: dict[Action, Group]) -> set[Peer]:
        """Return the processes outside a group that may act before the group acts."""
        found: set[Peer] = self._always - group
        for own in owners.values():
            if not own & group:
                found |= own
        ahead = [*found]
        while ahead:
            for near in self._near[ahead.pop()]:
                if near not in found and near not in group:
                    found.add(near)
                    ahead.append(near)
        return found

    def _is_blocked(self, process: Peer, near: Peer) -> bool:
        """Return True if a message of a process to its neighbour is received before all others.

        A process that loses the session dials again, and its dial overtakes the message.
        """
        here, there = self._endpoints[near], self._endpoints[process]
        ends = [end for end in here.connected if end.peer == process]
        if not ends and isinstance(near, str) and process not in here.attempts:
            return True  # no broker dials a client
        if (
            len(ends) != 1
            or process == self._planned
            or near in there.attempts
            or process in here.attempts
        ):
            return False
        end = ends[0]
        if not (end.up and end.other.up and end.lane.queue):
            return False
        return not (_is_closing(end) or _is_closing(end.other))


def _is_closing(end: SessionEnd) -> bool:
    return any(action.__name__ == "_close_arrives" for action, _ in end.lane.queue)
