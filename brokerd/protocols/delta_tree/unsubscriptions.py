"""The end of subscriptions in the whole tree: authority, announcements and tombstones.

Only a home broker ends a subscription, and announces the end once durable. A broker forwards
new ends on every session; every Summary has all tombstones of the sender. A
subscription that arrives after the end, on another path, is refused, and the sender is notified.

The home needs no record of ended ids: all ids of the home have ended except the living ids, and
the home's Summary announces that after a restart. Ids lost in a crash end in this way, too. A
broker forwards that statement only after dropping a row: a restart after which all brokers agree
costs no message.

Paper: none; [DFT11] does not cover unsubscription.
"""

from collections.abc import Sequence
from dataclasses import replace

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, SubscriptionId
from brokerd.protocols.delta_tree.messages import Summary, Tombstones, Unsubscription
from brokerd.protocols.delta_tree.routing_table import RoutingTable
from brokerd.protocols.delta_tree.sessions import Sessions
from brokerd.protocols.delta_tree.state import Rows, State, routing_removal
from brokerd.protocols.delta_tree.tombstones import (
    TombstoneTable,
    all_but,
    fault_of,
    read_tombstones,
    single_statement,
    tombstone_change,
)
from brokerd.protocols.interface import Change, Commit
from brokerd.protocols.parts.bounds import check_incarnation

NEVER = (1 << 32) - 1
"""An incarnation that no broker reaches."""


class Unsubscriptions:
    """The handling of ended subscriptions at a broker."""

    def __init__(self, state: State, sessions: Sessions, routing: RoutingTable) -> None:
        self._state = state
        self._sessions = sessions
        self._routing = routing
        self._table = routing.tombstones
        self._living: dict[SubscriptionId, None] = {}
        self._lineage = 0
        for home in state.neighbourhood.left:  # while this broker was down, perhaps
            self._table.add(_all_of(home))

    # ------------------------------------------------------------ at home

    def recover(self, recovered: Rows) -> None:
        """Restore the tombstones of an earlier incarnation, before any routing."""
        for statement in read_tombstones(recovered):
            self._table.add(statement)

    def begin(self, living: Sequence[SubscriptionId], lineage: int) -> None:
        """Begin a new incarnation: of this broker's earlier ids, only `living` have not ended.

        Args:
            lineage: see Started.
        """
        self._lineage = lineage
        self._living = dict.fromkeys(living)
        self._table.add(all_but(self._state.broker, self._state.incarnation, living))

    def on_issued(self, subscription: SubscriptionId) -> None:
        """Record a new subscription of a local client; it lives until `end`."""
        self._living[subscription] = None

    def end(self, ended: Sequence[SubscriptionId]) -> None:
        """Announce the durable end of subscriptions to all neighbours."""
        if not ended:
            return
        for subscription in ended:
            del self._living[subscription]
        here, current = self._state.broker, self._state.incarnation
        before = min([each.incarnation for each in self._living], default=current)
        tombstones = TombstoneTable()
        for each in ended:
            tombstones.add(single_statement(each))
        tombstones.add(Tombstones(here, before, ()))
        changes = tombstones.statement(here)
        self._table.add(changes)
        self._send_tombstones((changes,), None)

    def list_revoked(self, statements: Sequence[Tombstones]) -> list[SubscriptionId]:
        """Return the living ids of this broker that had ended before it lost state.

        An older copy of the state folder may have restored these subscriptions. Brokers that have
        their end route nothing to them.
        """
        if not self._lineage:
            return []
        ended = TombstoneTable()
        for statement in statements:
            if statement.home == self._state.broker:
                ended.add(statement)
        earlier = (each for each in self._living if each.incarnation < self._state.incarnation)
        return [each for each in earlier if each in ended]

    def on_departed(self, home: BrokerNumber) -> None:
        """End all subscriptions of a departed leaf, and announce that to brokers farther away.

        The leaf's own announcement may be lost. Brokers nearby refuse messages with its path.
        """
        self._add_statements(home, (_all_of(home),), forward=True)

    # ------------------------------------------------------------ from other brokers

    def statements(self) -> tuple[Tombstones, ...]:
        """Return all tombstones for a Summary."""
        rows = [each for each in self._table.statements() if each.before > 1 or each.ranges]
        return tuple(rows)

    def on_summary(self, peer: BrokerNumber, message: Summary) -> None:
        """Add the tombstones of a peer's Summary.

        Raises:
            RemoteProtocolError: the peer cannot have these tombstones.
        """
        self._check(peer, message.tombstones)
        for subscription in message.accepted:
            if (
                subscription.home == self._state.broker
                and subscription not in self._living
                and subscription not in self._table
            ):
                raise RemoteProtocolError(peer, f"routes by {subscription}, never issued here")
        self._add_statements(peer, message.tombstones, forward=False)

    def on_unsubscription(self, peer: BrokerNumber, message: Unsubscription) -> None:
        """Add and forward a peer's new tombstones.

        Raises:
            RemoteProtocolError: the peer cannot have these tombstones.
        """
        self._check(peer, message.tombstones)
        self._add_statements(peer, message.tombstones, forward=True)

    def _check(self, peer: BrokerNumber, statements: Sequence[Tombstones]) -> None:
        """Check statements; others have tombstones of this broker's ids only from this broker."""
        homes = dict.fromkeys(statement.home for statement in statements)
        if len(homes) < len(statements):
            raise RemoteProtocolError(peer, "two statements of one home")
        for statement in statements:
            wrong = fault_of(statement)
            if wrong:
                raise RemoteProtocolError(peer, wrong)
            if statement.home == self._state.broker and not self._is_possible(statement):
                raise RemoteProtocolError(peer, f"ends what lives here: {statement}"[:300])
            if statement != _all_of(statement.home):  # of a broker that has left, all is over
                stated = max([statement.before, *(last[2] for last in statement.ranges)])
                known = self._table.newest(statement.home)
                check_incarnation(peer, statement.home, known, stated)

    def _is_possible(self, statement: Tombstones) -> bool:
        """Return True if another broker may have a statement about ids of this broker.

        A broker that lost state may have lost ends of earlier incarnations.
        """
        if self._table.includes(statement):
            return True
        newest = max([statement.before, *(last[2] + 1 for last in statement.ranges)])
        return bool(self._lineage) and newest <= self._state.incarnation

    def _add_statements(
        self, peer: BrokerNumber, statements: Sequence[Tombstones], *, forward: bool
    ) -> None:
        new_rows: list[Tombstones] = []
        changes: list[Change] = []
        for statement in statements:
            if statement.home == self._state.broker:
                continue  # see `revoked`
            before = self._table.before(statement.home)
            if not self._table.add(statement):
                continue
            fresh = replace(statement, before=0) if statement.before <= before else statement
            dropped = self._routing.drop(fresh)
            if dropped or forward:
                new_rows.append(statement)
            changes.extend(map(routing_removal, dropped))
            changes.append(tombstone_change(self._table.statement(statement.home)))
        if changes and self._state.parameters.persist_routing:
            self._state.machine.emit(Commit(tuple(changes), None))
        if new_rows:
            self._send_tombstones(tuple(new_rows), peer)

    def _send_tombstones(
        self, changes: tuple[Tombstones, ...], source: BrokerNumber | None
    ) -> None:
        """Send tombstones on every session, active or not."""
        for node in self._sessions.nodes.values():
            if node.session and node.broker != source:
                self._state.counters["unsubscriptions_sent"] += 1
                self._state.machine.send(node.broker, Unsubscription(changes))


def _all_of(home: BrokerNumber) -> Tombstones:
    """Return a statement that all ids of a broker, even future ones, have ended."""
    return Tombstones(home, NEVER, ())
