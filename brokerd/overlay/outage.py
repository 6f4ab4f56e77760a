"""The failures of one moment, and the publications that brokers still receive."""

from collections.abc import Mapping
from dataclasses import dataclass

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.routes import Link, Lost, is_open
from brokerd.overlay.topology import Topology

Reached = Mapping[BrokerNumber, frozenset[BrokerNumber]]
"""Subscriber's broker → the brokers with publications that arrive there."""


@dataclass(frozen=True, slots=True)
class Outage:
    """The brokers and connections that have failed.

    Attributes:
        down: brokers that have crashed or are unreachable.
        absorbing: brokers that receive everything and send nothing, unnoticed.
        cut: pairs of brokers (smaller number first) without a session with each other.
        absorbed: (from, to): messages in this direction are lost in transit, unnoticed.
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
        """Return the brokers that are present and not down, in order."""
        present = map(topology.number_of, topology.present())
        return tuple(number for number in present if number not in self.down)


def open_routes(topology: Topology, outage: Outage) -> Reached:
    """Return the brokers that reach each other over the routes of a topology's first kind.

    A pair that absorbs in one direction is treated as absorbing in both.
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
    """Return an origin and a home, among the remaining brokers, without an open route; or None."""
    overlay = topology.overlay()
    left = Outage(down=frozenset(lost.brokers)).live(topology)
    pairs = ((origin, home) for origin in left for home in left if origin != home)
    closed = (pair for pair in pairs if not is_open(overlay.route(*pair), lost.brokers, lost.links))
    return next(closed, None)
