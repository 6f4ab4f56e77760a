"""Confirmations of profiles: the versions that neighbours have received for their sides.

A broker that forwards a change waits until all receivers have confirmed for their sides, and then
confirms to the sender; so the origin receives a confirmation once all have the change. A
confirmation names the confirmed versions: a statement stands for all earlier versions, and the
receiver confirms known versions at once. A receiver that restarts, or is unreachable for long, may
have owed the confirmations of brokers with other paths, so the confirmation is incomplete.

Paper: [GES] §3 (propagation of profile changes). Deviates: changes are flooded, and confirmed.
"""

from dataclasses import dataclass
from typing import Final

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.ges.messages import ProfileReached
from brokerd.protocols.ges.state import Neighbours, Outcome, ProfileConfirmation
from brokerd.protocols.ges.units import Version
from brokerd.protocols.interface import Instant, Send

BEFORE_ALL: Final[Version] = (0, 0)


@dataclass(slots=True)
class PendingVersion:
    """A version of a profile that was sent to neighbours and awaits confirmations.

    Attributes:
        after: the confirmation is of all versions after this one.
        sender: the neighbour that receives the confirmation; None: this broker's own clients
            wait.
        missing: neighbours that have not confirmed for their side.
        crossing: neighbours to which the change is under way, in this session; their own copy of it
            is their confirmation.
        since_ns: the time of sending.
        is_complete: False after the loss of a confirmation, or of a neighbour that owed one.
    """

    after: Version
    version: Version
    sender: BrokerNumber | None
    missing: dict[BrokerNumber, None]
    crossing: dict[BrokerNumber, None]
    since_ns: Instant
    is_complete: bool = True

    def await_neighbour(self, peer: BrokerNumber) -> None:
        """Await the confirmation of a neighbour, unless it is the sender."""
        if self.sender != peer:
            self.missing[peer] = None

    def exempt(self, peer: BrokerNumber) -> None:
        """Await no confirmation of a neighbour."""
        self.missing.pop(peer, None)
        self.crossing.pop(peer, None)


class Confirmations:
    """The confirmations that this broker awaits and owes.

    The methods return messages, and a ProfileConfirmation for each version of this broker's own
    profile that awaits no neighbour any more.

    Attributes:
        given_up: neighbours that have been unreachable for long; no new version awaits them.
    """

    def __init__(self, broker: BrokerNumber, neighbours: Neighbours) -> None:
        self.given_up: dict[BrokerNumber, None] = {}
        self._broker = broker
        self._neighbours = neighbours
        self._pending: dict[BrokerNumber, list[PendingVersion]] = {}
        self._incomplete: dict[BrokerNumber, Version] = {}

    def add(self, origin: BrokerNumber, version: PendingVersion) -> list[Outcome]:
        """Await the confirmations of a version that was just sent."""
        self._pending.setdefault(origin, []).append(version)
        return self.settle(origin, version.since_ns)

    def origins(self) -> tuple[BrokerNumber, ...]:
        """Return the brokers whose profiles have unconfirmed versions."""
        return tuple(self._pending)

    def pending(self, origin: BrokerNumber) -> tuple[PendingVersion, ...]:
        """Return the unconfirmed versions of a profile, in order of arrival."""
        return tuple(self._pending.get(origin, ()))

    def is_confirmed(self, version: Version) -> bool:
        """Return True if no confirmation of this version of the own profile is outstanding."""
        waiting = self._pending.get(self._broker, ())
        return all(each.version != version for each in waiting)

    def count_unconfirmed(self) -> int:
        """Return the number of versions of profiles that await confirmations."""
        return sum(map(len, self._pending.values()))

    # ------------------------------------------------------------ neighbours

    def on_session(self, peer: BrokerNumber) -> None:
        """Await a neighbour with a new session: other neighbours of it count on that."""
        self.given_up.pop(peer, None)
        for waiting in self._pending.values():
            for each in waiting:
                each.await_neighbour(peer)

    def on_session_lost(self, peer: BrokerNumber) -> None:
        """Record that changes under way to a neighbour may be lost."""
        for waiting in self._pending.values():
            for each in waiting:
                each.crossing.pop(peer, None)

    def on_restart(self, peer: BrokerNumber) -> None:
        """Record that a neighbour has forgotten the confirmations that it owed and awaited."""
        for waiting in self._pending.values():
            for each in waiting:
                if peer in each.missing:
                    each.is_complete = False

    def stop_waiting(self, peer: BrokerNumber, now_ns: Instant) -> list[Outcome]:
        """Stop waiting for a neighbour that has been unreachable for long."""
        self.given_up[peer] = None
        outcomes: list[Outcome] = []
        for origin in tuple(self._pending):
            outcomes += self._on_confirmation(origin, peer, None, now_ns, is_complete=False)
        return outcomes

    # ------------------------------------------------------------ this broker's duty

    def keep_own(self) -> None:
        """Forget the versions of all other brokers' profiles."""
        own = self._pending.get(self._broker)
        self._pending = {self._broker: own} if own else {}
        self._incomplete.clear()

    def forget(self, origin: BrokerNumber) -> None:
        """Owe no confirmations of a profile that this broker does not keep any more."""
        self._pending.pop(origin, None)
        self._incomplete.pop(origin, None)

    # ------------------------------------------------------------ messages

    def on_reached(
        self, peer: BrokerNumber, message: ProfileReached, now_ns: Instant
    ) -> list[Outcome]:
        """Record that all on a neighbour's side have versions of a profile."""
        confirmed = message.after, message.through
        return self._on_confirmation(
            message.origin, peer, confirmed, now_ns, is_complete=message.is_complete
        )

    def is_crossing(self, peer: BrokerNumber, origin: BrokerNumber, version: Version) -> bool:
        """Return True for a change that both ends of a link sent to each other at once.

        Neither confirms: each has received the change from another neighbour, which it confirms to.
        """
        waiting = self._pending.get(origin, ())
        return any(each.version == version and peer in each.crossing for each in waiting)

    def on_crossing(
        self, peer: BrokerNumber, origin: BrokerNumber, version: Version, now_ns: Instant
    ) -> list[Outcome]:
        """Take a neighbour's own copy of a change as its confirmation."""
        for each in self._pending[origin]:
            if each.version == version:
                each.missing.pop(peer, None)
        return self.settle(origin, now_ns)

    def confirm_known(
        self, peer: BrokerNumber, origin: BrokerNumber, through: Version
    ) -> list[Outcome]:
        """Confirm known versions to a neighbour, apart from versions that are confirmed later.

        Without the confirmation an earlier version could wait for a stated version, which waits for
        the earlier version on another route.
        """
        last = BEFORE_ALL
        for each in self.owed_to(peer, origin):
            if each.version <= through:
                each.after, last = last, each.version  # earlier confirmations may be lost
        if last >= through:
            return []
        lost = self._incomplete.get(origin)
        return [Send(peer, ProfileReached(origin, last, through, lost is None or through > lost))]

    def owed_to(self, peer: BrokerNumber, origin: BrokerNumber) -> list[PendingVersion]:
        """Return the versions that a neighbour awaits confirmations of, in order."""
        waiting = self._pending.get(origin, ())
        return sorted(
            (each for each in waiting if each.sender == peer), key=lambda each: each.version
        )

    def _on_confirmation(
        self,
        origin: BrokerNumber,
        peer: BrokerNumber,
        confirmed: tuple[Version, Version] | None,
        now_ns: Instant,
        *,
        is_complete: bool,
    ) -> list[Outcome]:
        """Take a neighbour's confirmation of a range of versions; of all versions for None."""
        for each in self._pending.get(origin, ()):
            if confirmed is None or confirmed[0] < each.version <= confirmed[1]:
                each.is_complete &= is_complete or peer not in each.missing
                each.exempt(peer)  # a copy behind the confirmation awaits an answer
        return self.settle(origin, now_ns)

    def settle(self, origin: BrokerNumber, now_ns: Instant) -> list[Outcome]:
        """Return the confirmations of versions that await no neighbour any more."""
        waiting = self._pending.get(origin, ())
        done = [each for each in waiting if not each.missing]
        held = [each for each in waiting if each.missing]
        if held:
            self._pending[origin] = held
        else:
            self._pending.pop(origin, None)
        if origin == self._broker:
            return [
                ProfileConfirmation(each.version, now_ns - each.since_ns, each.is_complete)
                for each in done
            ]
        sends: list[Outcome] = []
        for each in done:
            if each.is_complete:
                self._incomplete.pop(origin, None)
            else:  # a neighbour that asks again after the end of a session learns of it, too
                self._incomplete[origin] = each.version
            if each.sender is not None and each.sender in self._neighbours.linked:
                reached = ProfileReached(origin, each.after, each.version, each.is_complete)
                sends.append(Send(each.sender, reached))
        return sends
