"""The propagation of profiles and their changes to every broker.

A change crosses every connection except the connection of arrival, once: a broker that has the
version confirms at once and stays silent (`confirmations`). A broker that sends a profile out of a
unit replaces the origin inside by the unit.

Paper: [GES] §3 (propagation of profile changes). Deviates: changes are flooded, and confirmed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, SubscriptionId
from brokerd.overlay.hierarchy import Address, Hierarchy
from brokerd.protocols.ges.confirmations import BEFORE_ALL, Confirmations, PendingVersion
from brokerd.protocols.ges.keepers import Keepers
from brokerd.protocols.ges.messages import Entry, ProfileChanged, ProfileStated
from brokerd.protocols.ges.profile_graph import Profiles
from brokerd.protocols.ges.state import Neighbours, Outcome
from brokerd.protocols.ges.units import (
    FIRST,
    Unit,
    Version,
    after,
    is_inside,
    is_its_own,
    substitute_version,
    unit_text,
)
from brokerd.protocols.interface import Instant, Send
from brokerd.protocols.parts.bounds import is_leap

ENTRIES_LIMIT: Final = 1 << 18
"""The most subscriptions in one broker's profile: as many as its accepted clients can have."""


class Propagation:
    """The propagation of profiles by one broker.

    The methods return messages, and confirmations as Confirmations does.

    Args:
        may_move: brokers may have other addresses than those of the topology.

    Attributes:
        confirmations: the versions that await confirmations.
        counters: for statistics.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        neighbours: Neighbours,
        profiles: Profiles,
        keepers: Keepers,
        confirmations: Confirmations,
        *,
        may_move: bool = False,
    ) -> None:
        self._broker = broker
        self._keepers = keepers
        self.confirmations = confirmations
        self._neighbours = neighbours
        self._place = neighbours.place
        self._profiles = profiles
        self.counters = {"profiles_outbid": 0}
        self._may_move = may_move
        self._homes: Mapping[BrokerNumber, Address] = {}
        self._only_outside: dict[BrokerNumber, tuple[Version, Unit]] = {}

    def start(self, incarnation: int) -> None:
        """Start with an empty profile."""
        address = self._place.address
        self._profiles.replace(ProfileStated(self._broker, address, (incarnation, FIRST), ()))

    def restart(self, now_ns: Instant) -> list[Outcome]:
        """Restart at another address: forget all other profiles, and state the own profile again.

        Subscriptions that clients await were stated in an earlier version, which every broker with
        this version has, too.
        """
        version = self.next_version()
        self._profiles.restart(self._broker, self._place.address)
        self._profiles.change(self._broker, version, (), ())
        self.confirmations.keep_own()
        self._only_outside.clear()
        return self._pass_on(self._profiles.statement(self._broker), None, now_ns)

    def offer_all(self, peer: BrokerNumber) -> list[Outcome]:
        """Send all profiles to a neighbour with a new session, and await the confirmations.

        Profiles that only some brokers keep wait for the neighbour's duty.
        """
        self.confirmations.on_session(peer)
        if self._keepers.is_paper:
            return []
        origins = self._profiles.origins()
        return [self._send(peer, self._profiles.statement(origin)) for origin in origins]

    def on_duty(
        self, peer: BrokerNumber, before: int | None, now_ns: Instant, *, is_first: bool
    ) -> list[Outcome]:
        """Send the profiles that a neighbour keeps from now on, and await it for no others.

        Args:
            before: the last duty of the neighbour, if any.
            is_first: True for the first duty in a session: profiles sent earlier may be lost.
        """
        outcomes: list[Outcome] = []
        for origin in self._profiles.origins():
            stated = self._profiles.statement(origin)
            place = self._place_at(peer, stated)
            is_kept = self._keepers.covers(peer, before, place)
            waiting = self.confirmations.pending(origin)
            if not self._keepers.may_need(peer, place):
                for each in waiting:
                    each.is_complete &= not (is_kept and peer in each.missing)
                    each.exempt(peer)
            elif self._keepers.needs(peer, place) and (is_first or not is_kept):
                for each in waiting:
                    each.crossing.pop(peer, None)  # an earlier copy may have been dropped
                    each.await_neighbour(peer)
                outcomes.append(self._send(peer, stated))
            outcomes += self.confirmations.settle(origin, now_ns)
        return outcomes

    def on_expected(self, now_ns: Instant) -> list[Outcome]:
        """Await the neighbours that keep profiles by the changed graph, and no others."""
        outcomes: list[Outcome] = []
        for origin in self.confirmations.origins():
            stated = self._profiles.statement(origin)
            for peer in self._neighbours.all_linked():
                place = self._place_at(peer, stated)
                may_need = self._keepers.may_need(peer, place)
                for each in self.confirmations.pending(origin):
                    if not may_need:
                        each.missing.pop(peer, None)
                    elif not self._keepers.needs(peer, place):
                        each.await_neighbour(peer)
            outcomes += self.confirmations.settle(origin, now_ns)
        return outcomes

    def forget_unkept(self) -> None:
        """Remove the profiles that this broker does not keep any more, and owe no confirmations."""
        for origin in self._profiles.origins():
            if not self._keeps(self._profiles.statement(origin)):
                self._profiles.remove(origin)
                self._only_outside.pop(origin, None)
                self.confirmations.forget(origin)

    def _keeps(self, message: ProfileStated | ProfileChanged) -> bool:
        return message.origin == self._broker or self._keepers.keeps(message.place)

    def use(self, hierarchy: Hierarchy) -> None:
        """Take the brokers of a topology; profiles of others are refused."""
        self._homes = dict(enumerate(hierarchy.addresses))

    def next_version(self) -> Version:
        """Return the version of this broker's profile after its next change."""
        known = self._profiles.version(self._broker)
        assert known is not None, "no profile of its own before it was started"
        return known[0], after(known[1])

    def change_own(
        self, added: Iterable[Entry], removed: Iterable[SubscriptionId], now_ns: Instant
    ) -> list[Outcome]:
        """Change this broker's profile, and send the change to all neighbours."""
        version = self.next_version()
        changed = ProfileChanged(
            self._broker, self._place.address, version, tuple(added), tuple(removed)
        )
        self._profiles.change(self._broker, version, changed.added, changed.removed)
        return self._pass_on(changed, None, now_ns)

    def speak_for(self, unit: Unit, now_ns: Instant) -> list[Outcome]:
        """State in the place of a broker or unit that its profiles are empty."""
        outcomes: list[Outcome] = []
        for origin in self._profiles.origins_in(unit):
            outcomes += self.speak_for_broker(origin, now_ns)
        return outcomes

    def speak_for_broker(self, origin: BrokerNumber, now_ns: Instant) -> list[Outcome]:
        """State an empty profile in the place of a broker, unless it is empty already."""
        if not self._profiles.wants(origin):
            return []
        known = self._profiles.statement(origin)
        removed = replace(known, version=substitute_version(known.version), predicates=())
        self._profiles.replace(removed)
        return self._pass_on(removed, None, now_ns)

    def find_outside_only(self) -> Iterable[BrokerNumber]:
        """Return brokers of an own unit with later versions of profiles outside than inside."""
        self._only_outside = {
            origin: noted
            for origin, noted in self._only_outside.items()
            if (self._profiles.version(origin) or (0, 0)) < noted[0]
        }
        return tuple(self._only_outside)

    def speak_for_unknown(self, origin: BrokerNumber, now_ns: Instant) -> list[Outcome]:
        """State an empty profile in the place of a broker of `find_outside_only`.

        A live broker refutes the statement.
        """
        if origin not in self._only_outside:
            return []
        version, around = self._only_outside.pop(origin)
        place = self._find_place(origin, around)
        removed = ProfileStated(origin, place, substitute_version(version), ())
        self._profiles.replace(removed)
        return self._pass_on(removed, None, now_ns)

    def _find_place(self, origin: BrokerNumber, around: Unit) -> Unit:
        """Return the place of a broker of an own unit: the known one, or that of the topology.

        The broker may have left the latter place with others. Then it is in this broker's cluster.
        """
        if self._profiles.version(origin) is not None:
            return self._profiles.statement(origin).place
        home = self._homes[origin]
        own = self._place.address
        return self._place.outermost_unit_of(home) if is_inside(home, around) else own

    def on_stated(
        self, peer: BrokerNumber, message: ProfileStated, now_ns: Instant
    ) -> list[Outcome]:
        """Take the statement of a whole profile from a neighbour, or correct it.

        Raises:
            RemoteProtocolError: the statement is impossible; the fault of the neighbour.
        """
        self._check(peer, message)
        message = self._precise(message)
        if not self._keeps(message):
            return []  # under way when this broker took a smaller duty; nothing awaits it
        if self._is_forged(message):
            return self._restate(message.version, now_ns)
        if self._is_refuted(message):
            answers = self._answer_known(peer, message)
            return [*answers, *self._refute(peer, message, now_ns)]
        if self._is_new(message):
            known = self._profiles.version(message.origin) or BEFORE_ALL
            answers = self.confirmations.confirm_known(peer, message.origin, known)
            self._profiles.replace(message)
            return [*answers, *self._pass_on(message, peer, now_ns, known)]
        return self._answer_known(peer, message)

    def on_changed(
        self, peer: BrokerNumber, message: ProfileChanged, now_ns: Instant
    ) -> list[Outcome]:
        """Take the change of a profile from a neighbour, or correct it.

        Raises:
            RemoteProtocolError: the change is impossible, or follows no version here; the fault of
                the neighbour.
        """
        self._check(peer, message)
        if self._is_forged(message):
            return self._restate(message.version, now_ns)
        if not self._keeps(message):
            return []
        if self.confirmations.is_crossing(peer, message.origin, message.version):
            self._keepers.counters["changes_crossed"] += 1
            return self.confirmations.on_crossing(peer, message.origin, message.version, now_ns)
        if not self._is_new(message):
            return self._answer_known(peer, message)
        incarnation, number = message.version
        known = self._profiles.version(message.origin)
        if known is None and self._keepers.is_paper:
            return []  # under way when this broker took a smaller duty, and then this one again
        if known is not None and not is_its_own(known):
            return []  # the origin receives the statements in its place, and restates all
        if known is None or known[0] != incarnation or after(known[1]) != number:
            raise RemoteProtocolError(
                peer, f"version {message.version} of {message.origin}'s profile after {known}"
            )
        self._profiles.change(message.origin, message.version, message.added, message.removed)
        return self._pass_on(message, peer, now_ns, known)

    def _check(self, peer: BrokerNumber, message: ProfileStated | ProfileChanged) -> None:
        entries = message.added if isinstance(message, ProfileChanged) else message.predicates
        for subscription, _ in entries:
            if subscription.home != message.origin:
                raise RemoteProtocolError(peer, f"{subscription} in {message.origin}'s profile")
        if not 0 < len(message.place) <= len(self._place.address):
            raise RemoteProtocolError(peer, f"{message.place} is no unit of this hierarchy")
        if message.origin not in self._homes:
            raise RemoteProtocolError(peer, f"the topology has no broker {message.origin}")
        home = self._homes.get(message.origin, message.place)
        if not (self._may_move or is_inside(home, message.place)):
            place = unit_text(message.place)
            raise RemoteProtocolError(peer, f"broker {message.origin} is not in unit {place}")
        known = self._profiles.version(message.origin)
        if known is not None and is_leap(known, message.version):
            raise RemoteProtocolError(
                peer, f"version {message.version} of {message.origin}'s profile leaps from {known}"
            )
        has = self._profiles.size(message.origin) if isinstance(message, ProfileChanged) else 0
        if has + len(entries) > ENTRIES_LIMIT:
            raise RemoteProtocolError(
                peer, f"{message.origin}'s profile has more than {ENTRIES_LIMIT} subscriptions"
            )

    def _is_forged(self, message: ProfileStated | ProfileChanged) -> bool:
        """Return True for a version of this broker's own profile that it has not stated."""
        own = self._profiles.version(self._broker)
        if message.origin != self._broker or own is None or message.version <= own:
            return False
        return is_its_own(message.version) or message.version[0] > own[0]

    def _restate(self, forged: Version, now_ns: Instant) -> list[Outcome]:
        """State the own profile under a version later than a forged version.

        Link-state protocols do the same with forged statements in their own name.
        """
        self._profiles.change(self._broker, (forged[0], after(forged[1])), (), ())
        self.counters["profiles_outbid"] += 1
        return self._pass_on(self._profiles.statement(self._broker), None, now_ns)

    def _is_new(self, message: ProfileStated | ProfileChanged) -> bool:
        """Return True for a newer version.

        Profiles from inside a unit are exchanged inside only.
        """
        if message.origin == self._broker or self._place.is_in(message.place):
            return False
        known = self._profiles.version(message.origin)
        # A known version that leaps from this one was forged while nothing was known here.
        return known is None or message.version > known or is_leap(message.version, known)

    def _precise(self, message: ProfileStated) -> ProfileStated:
        """Return an outside statement in a broker's place, with the broker's place inside the unit.

        Inside, the statement is forwarded to that broker, which may live.
        """
        if is_its_own(message.version) or not self._place.is_in(message.place):
            return message
        if self._profiles.version(message.origin) is None:
            return message
        return replace(message, place=self._profiles.statement(message.origin).place)

    def _is_refuted(self, message: ProfileStated) -> bool:
        """Return True for a statement in a broker's place that the own, later profile refutes."""
        known = self._profiles.version(message.origin)
        if known is None or is_its_own(message.version):
            return False
        if message.origin == self._broker:
            return known[0] == message.version[0]
        return is_its_own(known) and known > message.version

    def _refute(self, peer: BrokerNumber, refuted: ProfileStated, now_ns: Instant) -> list[Outcome]:
        """State the whole profile of a broker that others have stated to be empty in its place."""
        known = self._profiles.statement(refuted.origin)
        if known.version > refuted.version:
            return [self._send(peer, known)]
        later = refuted.version[0], after(refuted.version[1])
        self._profiles.change(self._broker, later, (), ())
        return self._pass_on(replace(known, version=later), None, now_ns)

    def _answer_known(
        self, peer: BrokerNumber, message: ProfileStated | ProfileChanged
    ) -> list[Outcome]:
        """Confirm a version that is not new, and note later versions from outside an own unit."""
        if self._place.is_in(message.place) and is_its_own(message.version):
            noted = message.version, message.place
            self._only_outside[message.origin] = max(
                noted, self._only_outside.get(message.origin, noted)
            )
        owed = self.confirmations.owed_to(peer, message.origin)
        if owed and owed[-1].version >= message.version:
            # Repeated: the confirmation follows later, and stands for lost ones.
            return self.confirmations.confirm_known(peer, message.origin, owed[-1].version)
        known = self._profiles.version(message.origin)
        sends: list[Outcome] = []
        if known is not None and known > message.version and not is_its_own(known):
            sends.append(self._send(peer, self._profiles.statement(message.origin)))
        known_here = self.confirmations.confirm_known(peer, message.origin, message.version)
        return [*sends, *known_here]

    def _pass_on(
        self,
        message: ProfileStated | ProfileChanged,
        stated_by: BrokerNumber | None,
        now_ns: Instant,
        known: Version | None = None,
    ) -> list[Outcome]:
        """Return the messages to all neighbours but the sender, and await their confirmations."""
        outcomes: list[Outcome] = []
        awaited: dict[BrokerNumber, None] = {}
        crossing: dict[BrokerNumber, None] = {}
        for peer in self._neighbours.addresses:
            place = self._place_at(peer, message)
            if peer == stated_by or not self._keepers.may_need(peer, place):
                continue
            if peer not in self.confirmations.given_up:
                awaited[peer] = None
            if peer in self._neighbours.linked and self._keepers.needs(peer, place):
                outcomes.append(self._send(peer, message))
                crossing[peer] = None
        if not (self._keepers.is_paper and isinstance(message, ProfileChanged)):
            crossing = {}
        waiting = PendingVersion(
            known or BEFORE_ALL, message.version, stated_by, awaited, crossing, now_ns
        )
        return [*outcomes, *self.confirmations.add(message.origin, waiting)]

    def _send(self, peer: BrokerNumber, message: ProfileStated | ProfileChanged) -> Send:
        place = self._place_for(message.place, peer)
        sent: Any = replace(message, place=place) if place != message.place else message
        return Send(peer, sent)

    def _place_at(self, peer: BrokerNumber, message: ProfileStated | ProfileChanged) -> Unit:
        """Return the place by which a neighbour needs a profile.

        A statement in the name of the neighbour reaches the neighbour, which refutes it if it is
        another broker's, wherever that has the neighbour.
        """
        return self._neighbours.addresses[peer] if message.origin == peer else message.place

    def _place_for(self, place: Unit, peer: BrokerNumber) -> Unit:
        """Return a place as a neighbour sees it."""
        level = self._place.link_level(self._place.address, self._neighbours.addresses[peer])
        left = self._place.own_unit(level)
        return left if level and is_inside(place, left) else place
