"""Brokers with a profile when its broker reports a subscription as started.

A subscriber that receives "started" publishes and expects answers at once. Each broker that could
have had the profile must have it by then, so every report is compared with the state of all
brokers.

Paper: [GES] §3 (propagation of profile changes).
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from brokerd.model.client_messages import Subscribe, Subscribed
from brokerd.model.identity import BrokerNumber, Peer, SubscriptionId
from brokerd.overlay.hierarchy import Address
from brokerd.overlay.routes import Link
from brokerd.protocols.ges.messages import DutyStated
from brokerd.protocols.ges.unit_router import UnitRouter
from brokerd.protocols.ges.units import Version, common_length, is_its_own
from brokerd.protocols.interface import (
    Effect,
    Event,
    Instant,
    MessageReceived,
    Send,
    SessionEstablished,
    SessionLost,
    Started,
)
from brokerd.simulator.checks.protocol_checks import CheckedWorld
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.views import BrokerView


class StartChecks:
    """Ages of all sessions between brokers, and the rule for reports of started subscriptions.

    G9: at the first report of a started subscription, every live broker with a path to the
    reporting broker since before the request, or for longer than `purge_ns`, has the subscription
    in that broker's profile. A report that is not exact states a longer age in place of `purge_ns`.
    Later reports repeat the first to a client that reconnects.

    A broker counts as having the subscription, too, if a statement in the place of the reporting
    broker has just replaced a version with it: that broker refutes the statement on arrival.

    A path counts if all sessions are established at both ends for so long, if both ends of all
    sessions have acknowledged each other's address, and if the path leaves a unit of the
    subscription's broker once, because units do not take profiles of their own members from
    outside. With `keeper_policy = "paper"` it counts, too, only over brokers that have stated
    for so long to the broker before them that they keep the profile, and only brokers without
    attestation of the profile's place may lack it.
    """

    def __init__(self, world: CheckedWorld) -> None:
        self._world = world
        self._purge_ns: int = world.parameters.purge_ns
        self._linked_since: dict[Link, Instant] = {}
        self._addresses: dict[BrokerNumber, Address] = {}
        self._duties: dict[tuple[BrokerNumber, BrokerNumber], tuple[int, Instant]] = {}
        self._requested_ns: dict[SubscriptionId, Instant] = {}
        self._added: dict[SubscriptionId, Version] = {}
        self._reported: dict[SubscriptionId, None] = {}

    def step(self, broker: BrokerView, event: Event, effects: list[Effect]) -> None:
        """Check the effects of an event that a core has handled."""
        core: Any = broker.core
        if type(event) is Started or self._addresses.get(broker.number) != core.units.place.address:
            self._addresses[broker.number] = core.units.place.address
            self._unlink(broker.number)
        if type(event) is SessionLost and isinstance(event.peer, int):
            self._linked_since.pop(_link(broker.number, event.peer), None)
            self._duties.pop((broker.number, event.peer), None)
        elif type(event) is SessionEstablished and isinstance(event.peer, int):
            self._linked_since[_link(broker.number, event.peer)] = self._world.schedule.now_ns
        elif type(event) is MessageReceived and type(event.message) is DutyStated:
            self._note_duty(broker.number, event.peer, event.message.level)
        elif type(event) is MessageReceived and type(event.message) is Subscribe:
            requested = _subscription(broker, event.peer, event.message.number)
            if requested is not None:
                self._requested_ns.setdefault(requested, self._world.schedule.now_ns)
                self._added.setdefault(requested, core.units.profiles.version(broker.number))
        for effect in effects:
            message = effect.message if isinstance(effect, Send) else None
            if type(message) is Subscribed and message.state == "started":
                assert isinstance(effect, Send), f"{effect} reports {message}"
                self._check(broker, effect.peer, message)

    def _note_duty(self, broker: BrokerNumber, peer: Peer, level: int) -> None:
        """Record the duty that a broker has received from a neighbour, and since when."""
        assert isinstance(peer, int), f"a duty of client {peer!r}"
        before, since_ns = self._duties.get((broker, peer), (-1, 0))
        if level > before:
            since_ns = self._world.schedule.now_ns
        self._duties[broker, peer] = level, since_ns

    def _unlink(self, broker: BrokerNumber) -> None:
        """Exclude sessions before a restart, or with another address, from paths."""
        now_ns = self._world.schedule.now_ns
        for link in self._linked_since:
            if broker in link:
                self._linked_since[link] = now_ns
        for pair in [pair for pair in self._duties if broker in pair]:
            del self._duties[pair]

    def _check(self, broker: BrokerView, client: Peer, message: Subscribed) -> None:
        subscription = _subscription(broker, client, message.number)
        assert subscription is not None, f"{broker.name} has no {client}/{message.number}"
        now_ns = self._world.schedule.now_ns
        requested_ns = self._requested_ns.get(subscription, 0)
        brokers = self._world.brokers()
        stated_ns = message.path_age_ns
        if 0 < stated_ns < self._purge_ns or stated_ns > now_ns - requested_ns:
            raise InvariantViolated(
                "started inexactly",
                f"{broker.name} reports {client}/{message.number} as started for paths older than "
                f"{stated_ns} ns",
            )
        if subscription in self._reported:
            return
        self._reported[subscription] = None
        age_ns = max(self._purge_ns, stated_ns)
        for number in self._find_reached(broker, brokers, max(requested_ns, now_ns - age_ns)):
            there: Any = brokers[number].core
            if not is_attested(there.units, self._addresses[broker.number]):
                continue
            known = there.units.profiles.by_origin().get(broker.number)
            if known is not None and is_replaced(known.version, self._added[subscription]):
                continue
            if known is None or subscription not in known.predicates:
                version = known.version if known is not None else "nothing"
                raise InvariantViolated(
                    "started early",
                    f"{broker.name} reports {client}/{message.number} as started, and "
                    f"{brokers[number].name} has {version} of its profile",
                )

    def _find_reached(
        self, start: BrokerView, brokers: Sequence[BrokerView], before_ns: Instant
    ) -> Mapping[BrokerNumber, None]:
        """Return brokers with a path since before an instant, without the start itself."""
        home = self._addresses[start.number]
        near: dict[BrokerNumber, list[BrokerNumber]] = {}
        for (a, b), since_ns in self._linked_since.items():
            if since_ns < before_ns and _is_linked(brokers[a], brokers[b]):
                near.setdefault(a, []).append(b)
                near.setdefault(b, []).append(a)
        found: dict[BrokerNumber, None] = {start.number: None}
        waiting = [start.number]
        while waiting:
            here = waiting.pop()
            depth = common_length(home, self._addresses[here])
            for peer in near.get(here, ()):
                if not self._is_announced(brokers[here], peer, home, before_ns):
                    continue
                if peer not in found and common_length(home, self._addresses[peer]) <= depth:
                    found[peer] = None
                    waiting.append(peer)
        del found[start.number]
        return found

    def _is_announced(
        self, broker: BrokerView, peer: BrokerNumber, home: Address, before_ns: Instant
    ) -> bool:
        """Return True if a broker had stated before that a neighbour keeps a profile."""
        core: Any = broker.core
        if not core.units.keepers.is_paper:
            return True
        _, since_ns = self._duties.get((broker.number, peer), (0, before_ns))
        place = core.units.place.outermost_unit_of(home)
        return since_ns < before_ns and bool(core.units.keepers.needs(peer, place))


def is_attested(units: UnitRouter, address: Address) -> bool:
    """Return True if a broker decides by the profile of the broker at an address.

    Otherwise it sends every publication there.
    """
    return units.keepers.is_complete(units.place.outermost_unit_of(address))


def is_replaced(known: Version, added: Version) -> bool:
    """Return True for a statement in place of `added`, a broker's own version, or a later one."""
    return not is_its_own(known) and known > added


def _subscription(broker: BrokerView, client: Peer, number: int) -> SubscriptionId | None:
    core: Any = broker.core
    known = core._table.clients.get(client)
    local = known.subscriptions.get(number) if known is not None else None
    found: SubscriptionId | None = local.subscription if local is not None else None
    return found


def _link(a: BrokerNumber, b: BrokerNumber) -> Link:
    return min(a, b), max(a, b)


def _is_linked(one: BrokerView, other: BrokerView) -> bool:
    """Return True if two live brokers have a common session and each other's address."""
    end = one.ends.get(other.number)
    if end is None or not (one.alive and other.alive):
        return False
    core, core_there = cast(Any, one.core), cast(Any, other.core)
    here: UnitRouter = core.units
    there: UnitRouter = core_there.units
    return (
        other.ends.get(one.number) is end.other
        and here.is_linked(other.number)
        and there.is_linked(one.number)
    )
