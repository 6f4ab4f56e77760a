"""What must hold inside δ-tree brokers, whatever came in.

A white box: this reads the private parts of the core, so that the core carries no code for it.

Paper: [DFT11] §II (one active session per primary path), §VI (queue order).
"""

from collections.abc import Sequence

from brokerd.protocols.delta_tree.core import DeltaTree
from brokerd.simulator.broker import SimulatedBroker
from brokerd.simulator.oracle import InvariantViolated


def check_internals(brokers: Sequence[SimulatedBroker]) -> None:
    """Look into every live broker.

    Raises:
        InvariantViolated: naming the broker and what is wrong in it.
    """
    for broker in brokers:
        if broker.alive and isinstance(broker.core, DeltaTree):
            _check_sessions(broker, broker.core)
            _check_queue(broker, broker.core)
            _check_known(broker, broker.core, brokers)


def zombies(brokers: Sequence[SimulatedBroker]) -> list[str]:
    """Rows of subscriptions that do not live at their home, in words.

    None may be left when all is healed and nothing is under way.
    """
    lines = []
    for broker in brokers:
        if not broker.alive or not isinstance(broker.core, DeltaTree):
            continue
        for subscription in broker.core._subscriptions._rows:
            home = brokers[subscription.home]
            if home is broker or not isinstance(home.core, DeltaTree):
                continue
            if not home.alive or subscription not in home.core._subscriptions._rows:
                lines.append(f"{broker.name} routes by {tuple(subscription)}, which is over")
    return lines


def _check_sessions(broker: SimulatedBroker, core: DeltaTree) -> None:
    """I11: what is active is established, and nothing nearer on its path is."""
    nodes = core._sessions.nodes
    for node in nodes.values():
        if node.session and broker.ends[node.broker].number != node.session:
            raise InvariantViolated(
                "session", f"{broker.name} takes {node.session} with {node.broker} for current"
            )
        if not node.active:
            continue
        nearer = [between for between in node.path[1:-1] if nodes[between].session]
        if not node.session or nearer:
            raise InvariantViolated(
                "active", f"{broker.name}: {node.broker} is active beside {nearer}"
            )


def _check_queue(broker: SimulatedBroker, core: DeltaTree) -> None:
    """I12: entries of a source in order, and sent on sessions that exist."""
    for source, entries in core._publications._queue.items():
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


def _check_known(
    broker: SimulatedBroker, core: DeltaTree, brokers: Sequence[SimulatedBroker]
) -> None:
    """I18: a peer has every subscription it is known to have."""
    for peer, known in core._subscriptions._known.items():
        other = brokers[peer]
        end = broker.ends.get(peer)
        if (
            end is None
            or not core._sessions.nodes[peer].ready
            or not other.alive
            or end.other.incarnation != other.incarnation
            or not isinstance(other.core, DeltaTree)
        ):
            continue
        rows, ended = other.core._subscriptions._rows, other.core._subscriptions.ended
        wrong = [
            subscription
            for subscription in known
            if subscription.home != peer and subscription not in rows and subscription not in ended
        ]
        if wrong:
            raise InvariantViolated(
                "summary", f"{broker.name} believes that {other.name} has {wrong[:3]}"
            )
