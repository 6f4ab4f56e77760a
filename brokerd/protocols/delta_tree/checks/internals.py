"""Invariants inside δ-tree brokers, for any input.

A white box: this module reads the private parts of the core, so that the core has no code for it.

Paper: [DFT11] §II (one active session per primary path), §VI (queue order).
"""

from collections.abc import Sequence

from brokerd.protocols.delta_tree.core import DeltaTree
from brokerd.protocols.delta_tree.sessions import Reach
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.views import BrokerView


def zombies(brokers: Sequence[BrokerView]) -> list[str]:
    """Return rows of subscriptions that do not live at their home, for people.

    A healed and idle tree has none.
    """
    lines = []
    for broker in brokers:
        core = broker.protocol
        if not broker.alive or not isinstance(core, DeltaTree):
            continue
        for subscription in core._subscriptions.table.rows:
            home = brokers[subscription.home]
            core_there = home.protocol
            if home is broker or not isinstance(core_there, DeltaTree):
                continue
            if not home.alive or subscription not in core_there._subscriptions.table.rows:
                lines.append(f"{broker.name} routes by {tuple(subscription)}, which is over")
    return lines


def check_broker(broker: BrokerView, brokers: Sequence[BrokerView]) -> None:
    """Check one live broker; `brokers` are all, by number.

    Raises:
        InvariantViolated: naming the broker and the fault.
    """
    core = broker.protocol
    if isinstance(core, DeltaTree):
        _check_sessions(broker, core)
        _check_queue(broker, core)
        _check_partitions(broker, core)
        _check_known(broker, core, brokers)


def _check_sessions(broker: BrokerView, core: DeltaTree) -> None:
    """I11: an active session is established, and no session is nearer on its path."""
    nodes = core._sessions.nodes
    for node in nodes.values():
        if broker.session_with(node.broker) != node.session:
            raise InvariantViolated(
                "session", f"{broker.name} takes {node.session} with {node.broker} for current"
            )
        if not node.active:
            continue
        nearer = [between for between in node.path[1:-1] if nodes[between].session]
        if not node.session or nearer:
            raise InvariantViolated(
                "active", f"{broker.name}: {node.broker} is active in spite of {nearer}"
            )


def _check_queue(broker: BrokerView, core: DeltaTree) -> None:
    """I12: entries of a source are in order, and sent on existing sessions."""
    for source, entries in core._publications.queue.entries.items():
        last = 0
        for entry in entries:
            if entry.frame_first < last:
                raise InvariantViolated(
                    "queue order", f"{broker.name}: {tuple(source)} {entry.first} behind {last}"
                )
            last = entry.frame_first
            for hop, transfer in entry.transfers.items():
                if core._sessions.nodes[hop].session != transfer.session:
                    raise InvariantViolated(
                        "transfer",
                        f"{broker.name}: {tuple(source)} {entry.first} rides session "
                        f"{transfer.session} with {hop}, which is over",
                    )


def _check_partitions(broker: BrokerView, core: DeltaTree) -> None:
    """I13 and I14: own partitions are paths of unreachable brokers; others are within reach."""
    table, nodes = core._partitions, core._sessions.nodes
    wrong: list[str] = []
    for number, detector in table.detectors.items():
        if len(detector.path) - 1 > 2 * core._state.parameters.delta:
            wrong.append(f"{number} is {len(detector.path) - 1} links away")
        both = [pid for pid in detector.live if detector.is_gone(pid)]
        if both:
            wrong.append(f"{number}'s {both} are present and departed")
        foreign = [pid for pid in detector.live.values() if pid.incarnation != detector.incarnation]
        if foreign:
            wrong.append(f"{foreign} of another incarnation than {detector.incarnation}")
    own = table.detectors.get(broker.number)
    for partition in own.live.values() if own is not None else ():
        if partition.number in table._ended:
            continue
        node = nodes.get(partition.nodes[-1])
        if (
            node is None
            or node.partition != partition.number
            or node.path[1:] != partition.nodes
            or len(partition.nodes) > core._state.neighbourhood.radius
            or any(nodes[lost].reach is not Reach.UNREACHABLE for lost in partition.nodes)
        ):
            wrong.append(f"its own {tuple(partition)} is not what it cannot reach")
    if wrong:
        raise InvariantViolated("partitions", f"{broker.name}: {'; '.join(wrong)}")


def _check_known(broker: BrokerView, core: DeltaTree, brokers: Sequence[BrokerView]) -> None:
    """I18: a peer has every subscription recorded for the peer."""
    for peer, known in core._subscriptions.table.shared.items():
        other = brokers[peer]
        end, core_there = broker.ends.get(peer), other.protocol
        if (
            end is None
            or not core._sessions.nodes[peer].ready
            or not other.alive
            or end.other.incarnation != other.incarnation
            or not isinstance(core_there, DeltaTree)
        ):
            continue
        table = core_there._subscriptions.table
        rows, tombstones = table.rows, table.tombstones
        wrong = [
            subscription
            for subscription in known
            if subscription.home != peer
            and subscription not in rows
            and subscription not in tombstones
        ]
        if wrong:
            raise InvariantViolated(
                "summary", f"{broker.name} believes that {other.name} has {wrong[:3]}"
            )


def can_serve(one: BrokerView, other: BrokerView) -> bool:
    """Return True if two live brokers have synchronised with each other, or need not.

    Until then a cut link, or an end that counts as dead, is equivalent to a failure.
    """
    for here, there in ((one, other), (other, one)):
        core, core_there = here.protocol, there.protocol
        if not isinstance(core, DeltaTree) or not isinstance(core_there, DeltaTree):
            return True
        node = core._sessions.nodes.get(there.number)
        back = core_there._sessions.nodes.get(here.number)
        if node is None or back is None or node.reach is Reach.NOT_WANTED:
            continue
        if not node.ready or (back.active and not node.synchronised):
            return False
    return True
