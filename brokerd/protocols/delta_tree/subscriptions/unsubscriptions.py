"""Ending subscriptions everywhere: who may say it, whom it is told, what is remembered of it.

Only a home broker ends a subscription, and once that is on its disk it tells. Everybody tells
on, on every session, what is news to them; every Summary has all that its sender knows. A
subscription that comes later than the news of its end, on another way, is not taken in again,
and whoever sent it is told.

The home needs no memory of what it ended: all that it ever issued is over but for what lives
there, and so its Summary says when it has restarted. What it issued and lost in a crash ends
that way, too. That is told on by those who drop something for it only: a restart after which
everybody agrees costs no message.

Paper: none; [DFT11] says nothing of unsubscription.
"""

from collections.abc import Sequence
from dataclasses import replace

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, SubscriptionId
from brokerd.protocols.delta_tree.broker.state import State
from brokerd.protocols.delta_tree.messages import Summary, Tombstones, Unsubscription
from brokerd.protocols.delta_tree.sessions.sessions import Sessions
from brokerd.protocols.delta_tree.subscriptions.rows import Rows, routing_removal
from brokerd.protocols.delta_tree.subscriptions.spreading import Subscriptions
from brokerd.protocols.delta_tree.subscriptions.tombstones import (
    TombstoneTable,
    all_but,
    fault_of,
    only,
    read_tombstones,
    tombstone_change,
)
from brokerd.protocols.interface import Change, Commit
from brokerd.protocols.parts.leaps import check_incarnation

NEVER = (1 << 32) - 1
"""An incarnation that no broker comes to."""


class Unsubscriptions:
    """What one broker does about subscriptions that are over."""

    def __init__(self, state: State, sessions: Sessions, subscriptions: Subscriptions) -> None:
        self._state = state
        self._sessions = sessions
        self._subscriptions = subscriptions
        self._table = subscriptions.table.tombstones
        self._living: dict[SubscriptionId, None] = {}
        for home in state.neighbourhood.left:  # while this broker was down, perhaps
            self._table.add(_all_of(home))

    # ------------------------------------------------------------ at home

    def recover(self, recovered: Rows) -> None:
        """Remember what an earlier incarnation knew to be over; before routing by anything."""
        for statement in read_tombstones(recovered):
            self._table.add(statement)

    def begin(self, living: Sequence[SubscriptionId]) -> None:
        """A new incarnation: of what this broker issued before, only `living` is not over."""
        self._living = dict.fromkeys(living)
        self._table.add(all_but(self._state.broker, self._state.incarnation, living))

    def issued(self, subscription: SubscriptionId) -> None:
        """A new subscription of a local client; it lives until `end`."""
        self._living[subscription] = None

    def end(self, over: Sequence[SubscriptionId]) -> None:
        """These are over, and that is on disk: tell everybody."""
        if not over:
            return
        for subscription in over:
            del self._living[subscription]
        here, current = self._state.broker, self._state.incarnation
        before = min([each.incarnation for each in self._living], default=current)
        tombstones = TombstoneTable()
        for each in over:
            tombstones.add(only(each))
        tombstones.add(Tombstones(here, before, ()))
        news = tombstones.statement(here)
        self._table.add(news)
        self._tell((news,), None)

    def departed(self, home: BrokerNumber) -> None:
        """A leaf has left the tree: all that it issued is over, and who is farther away is told.

        Its own word may not have come through. Nobody near takes what has its path any more.
        """
        self._learn(home, (_all_of(home),), told_on=True)

    # ------------------------------------------------------------ from other brokers

    def statements(self) -> tuple[Tombstones, ...]:
        """All that is known to be over, for a Summary."""
        said = [each for each in self._table.statements() if each.before > 1 or each.ranges]
        return tuple(said)

    def on_summary(self, peer: BrokerNumber, message: Summary) -> None:
        """What a peer knows to be over, on a new session.

        Raises:
            RemoteProtocolError: it cannot know that.
        """
        self._check(peer, message.tombstones)
        for subscription in message.accepted:
            if (
                subscription.home == self._state.broker
                and subscription not in self._living
                and subscription not in self._table
            ):
                raise RemoteProtocolError(peer, f"routes by {subscription}, never issued here")
        self._learn(peer, message.tombstones, told_on=False)

    def on_unsubscription(self, peer: BrokerNumber, message: Unsubscription) -> None:
        """A peer has learnt of ends since its Summary.

        Raises:
            RemoteProtocolError: it cannot have.
        """
        self._check(peer, message.tombstones)
        self._learn(peer, message.tombstones, told_on=True)

    def _check(self, peer: BrokerNumber, statements: Sequence[Tombstones]) -> None:
        """What others know of our own subscriptions they know from us."""
        told = dict.fromkeys(statement.home for statement in statements)
        if len(told) < len(statements):
            raise RemoteProtocolError(peer, "two statements of one home")
        for statement in statements:
            wrong = fault_of(statement)
            if wrong:
                raise RemoteProtocolError(peer, wrong)
            if statement.home == self._state.broker and not self._table.includes(statement):
                raise RemoteProtocolError(peer, f"ends what lives here: {statement}"[:300])
            if statement != _all_of(statement.home):  # of a broker that has left, all is over
                stated = max([statement.before, *(last[2] for last in statement.ranges)])
                known = self._table.newest(statement.home)
                check_incarnation(peer, statement.home, known, stated)

    def _learn(
        self, peer: BrokerNumber, statements: Sequence[Tombstones], *, told_on: bool
    ) -> None:
        news: list[Tombstones] = []
        changes: list[Change] = []
        for statement in statements:
            before = self._table.before(statement.home)
            if not self._table.add(statement):
                continue
            fresh = replace(statement, before=0) if statement.before <= before else statement
            dropped = self._subscriptions.table.drop(fresh)
            if dropped or told_on:
                news.append(statement)
            changes.extend(map(routing_removal, dropped))
            changes.append(tombstone_change(self._table.statement(statement.home)))
        if changes and self._state.parameters.persist_routing:
            self._state.machine.emit(Commit(tuple(changes), None))
        if news:
            self._tell(tuple(news), peer)

    def _tell(self, news: tuple[Tombstones, ...], source: BrokerNumber | None) -> None:
        """Tell on every session, active or not."""
        for node in self._sessions.nodes.values():
            if node.session and node.broker != source:
                self._state.counters["unsubscriptions_sent"] += 1
                self._state.machine.send(node.broker, Unsubscription(news))


def _all_of(home: BrokerNumber) -> Tombstones:
    """All that a broker has issued is over, and it will issue nothing more."""
    return Tombstones(home, NEVER, ())
