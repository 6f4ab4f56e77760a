"""The forwarding of publications from clients to routes, along routes, and to clients.

Paper: [GES] §3 (event routing).
"""

from collections.abc import Callable, Iterable, Sequence

from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import Deliveries
from brokerd.model.identity import BrokerNumber, ClientId, Peer, SourceId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.ges.messages import RoutedPublications
from brokerd.protocols.ges.profiles import Interest, Profiles
from brokerd.protocols.ges.router import Routed, Router, Target
from brokerd.protocols.ges.units import Place, Unit
from brokerd.protocols.interface import Deliver
from brokerd.protocols.parts.event_machine import EventMachine
from brokerd.protocols.parts.selection import RunSelection

HOPS_PER_LEVEL = 32
"""Links per level; a publication that has crossed more has travelled in a circle."""


class PublicationForwarding:
    """The forwarding of publications by one broker.

    Args:
        reaches: returns True if a client is connected.
        sent: called with every neighbour that publications were sent to.
    """

    def __init__(
        self,
        machine: EventMachine,
        place: Place,
        router: Router,
        profiles: Profiles,
        reaches: Callable[[ClientId], bool],
        sent: Callable[[BrokerNumber], None],
    ) -> None:
        self._machine = machine
        self._place = place
        self._router = router
        self._profiles = profiles
        self._reaches = reaches
        self._sent = sent
        self._delivered: dict[SourceId, int] = {}
        self.counters = dict.fromkeys(
            (
                "publications_received",
                "publications_forwarded",
                "publications_delivered",
                "publications_without_route",
                "duplicates_received",
            ),
            0,
        )

    def publish(self, run: PublicationRun, client: ClientId) -> None:
        """Route publications of a client of this broker."""
        self._go(run, self._router.first_targets(), 0, client)

    def on_routed(self, peer: BrokerNumber, message: RoutedPublications) -> None:
        """Route publications that a neighbour has forwarded."""
        self._check(peer, message)
        self._go(message.run, message.targets, message.hops, peer)

    def _check(self, peer: BrokerNumber, message: RoutedPublications) -> None:
        if message.hops > HOPS_PER_LEVEL * len(self._place.address):
            raise RemoteProtocolError(peer, f"{message.run.source} came over {message.hops} links")
        for target in message.targets:
            empty = not all(target.frames) or not all(map(all, map(_lengths, target.frames)))
            if empty or target.level > self._place.top:
                raise RemoteProtocolError(peer, f"nothing can be done for {target}"[:300])

    def _go(self, run: PublicationRun, targets: Sequence[Target], hops: int, origin: Peer) -> None:
        self.counters["publications_received"] += len(run)
        undecided = _Undecided()
        routed = self._router.route(targets, undecided.interested)
        if not (undecided.asked or routed.deliver):
            self._send(run, routed, hops)
            return
        interests = self._profiles.match(run, origin)
        for interest, stretch in RunSelection(run).stretches(interests):
            routed = self._router.route(targets, interest.inside)
            self._send(stretch, routed, hops)
            if routed.deliver:
                self._deliver(stretch, interest)

    def _send(self, run: PublicationRun, routed: Routed, hops: int) -> None:
        if routed.lost:
            self.counters["publications_without_route"] += len(run)
        for peer, targets in routed.hops.items():
            self.counters["publications_forwarded"] += len(run)
            self._machine.send(peer, RoutedPublications(run, tuple(targets), hops + 1))
            self._sent(peer)

    def _deliver(self, run: PublicationRun, interest: Interest) -> None:
        """Deliver publications, except those overtaken by a later publication of their source."""
        latest = self._delivered.get(run.source, 0)
        fresh = [place for place, number in enumerate(run.sequences) if number > latest]
        self.counters["duplicates_received"] += len(run) - len(fresh)
        if not fresh:
            return
        if len(fresh) < len(run):
            run = run.select(fresh)
        self._delivered[run.source] = run.last
        for client, numbers in interest.clients.items():
            if self._reaches(client):
                self.counters["publications_delivered"] += len(run)
                self._machine.emit(Deliver(client, Deliveries(run, numbers)))


class _Undecided:
    """An empty interest that records if a router has requested it."""

    def __init__(self) -> None:
        self.asked = False

    def interested(self, unit: Unit) -> Iterable[Unit]:
        self.asked = True
        return ()


def _lengths(frame: tuple[Unit, ...]) -> list[int]:
    return [len(unit) for unit in frame]
