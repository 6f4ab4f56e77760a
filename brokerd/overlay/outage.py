"""What does not work at one moment, and who still gets whose publications then."""

from collections.abc import Mapping
from dataclasses import dataclass

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.routes import Link, Lost, is_open
from brokerd.overlay.topology import Topology

Reached = Mapping[BrokerNumber, frozenset[BrokerNumber]]
"""Subscriber's broker → the brokers whose publications come to it."""


@dataclass(frozen=True, slots=True)
class Outage:
    """What does not work.

    Attributes:
        down: brokers that are gone, or that nobody hears.
        absorbing: brokers that take everything in and let nothing out, unnoticed.
        cut: pairs of brokers (smaller number first) that have no session with each other.
        absorbed: (from, to): what is sent that way is lost on the way, unnoticed.
    """

    down: frozenset[BrokerNumber] = frozenset()
    absorbing: frozenset[BrokerNumber] = frozenset()
    cut: frozenset[Link] = frozenset()
    absorbed: frozenset[Link] = frozenset()

    def __or__(self, other: "Outage") -> "Outage":
        return Outage(
            self.down | other.down,
            self.absorbing | other.absorbing,
            self.cut | other.cut,
            self.absorbed | other.absorbed,
        )

    def live(self, topology: Topology) -> tuple[BrokerNumber, ...]:
        """The brokers that are there and not down, in order."""
        present = map(topology.number_of, topology.present())
        return tuple(number for number in present if number not in self.down)


def open_routes(topology: Topology, outage: Outage) -> Reached:
    """Who gets whose publications over the routes that a topology's first kind gives.

    What absorbs in one direction is taken to do so in both.
    """
    overlay = topology.overlay()
    live = outage.live(topology)
    lost = outage.down | outage.absorbing
    links = outage.cut | {(min(pair), max(pair)) for pair in outage.absorbed}
    return {
        home: frozenset(
            origin for origin in live if is_open(overlay.route(origin, home), lost, links)
        )
        for home in live
    }


def closed_route(topology: Topology, lost: Lost) -> Link | None:
    """An origin and a home, of those that are left, between which nothing gets; or None."""
    overlay = topology.overlay()
    left = Outage(down=frozenset(lost.brokers)).live(topology)
    pairs = ((origin, home) for origin in left for home in left if origin != home)
    closed = (pair for pair in pairs if not is_open(overlay.route(*pair), lost.brokers, lost.links))
    return next(closed, None)
