"""Incremental counters, recomputed from the counted state.

A wrong counter that only steers, for example a load or a number of messages in flight, causes no
loss: a server receives too many topics, a window closes too early, a request is repeated. So each
counter of a cluster at rest is recomputed from the state that it counts.

A white box like `growth`: the check walks through the whole state of a core.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from brokerd.simulator.checks.growth import objects_in
from brokerd.simulator.checks.oracle import InvariantViolated


class Holdings:
    """All objects of a core, by class."""

    def __init__(self, core: object) -> None:
        self._objects = list(objects_in(core))
        self._parcels: Counter[int] | None = None
        self._deliveries: Counter[int] | None = None

    def of(self, kind: type | str) -> list[Any]:
        """Return the objects of a class, or of a class with this name, and its subclasses."""
        if isinstance(kind, type):
            return [each for each in self._objects if isinstance(each, kind)]
        return [
            each
            for each in self._objects
            if any(ancestor.__name__ == kind for ancestor in type(each).__mro__)
        ]

    def deliveries_of(self, parcel: Any) -> int:
        """Return the number of deliveries that a parcel waits for."""
        if self._deliveries is None:
            self._deliveries = Counter(
                id(each.parcel) for each in _deliveries(self) if each.subscriptions
            )
        return self._deliveries[id(parcel)]

    def parcels_of(self, entry: object) -> int:
        """Return the number of parcels that an entry waits for."""
        if self._parcels is None:
            parcels = {id(each.parcel): each.parcel for each in _deliveries(self)}
            self._parcels = Counter(
                id(_whole(entry))
                for parcel in parcels.values()
                if parcel.open
                for entry in parcel.entries
            )
        return self._parcels[id(entry)]


@dataclass(frozen=True, slots=True)
class Recount:
    """One counter of all objects of a class.

    Attributes:
        kind: the class, or its name if shared checks must not import the class.
        name: name of the counter, for people.
        kept: returns the counter of an object.
        found: returns the recomputed value.
    """

    kind: type | str
    name: str
    kept: Callable[[Any], Any]
    found: Callable[[Any, Holdings], Any]


def check_recounts(name: str, core: object, recounts: Iterable[Recount]) -> int:
    """Recompute the counters of a broker or client; the cluster must be at rest.

    Returns:
        The number of recomputed counters.

    Raises:
        InvariantViolated: a counter is wrong; names the counter.
    """
    holdings, counted = Holdings(core), 0
    for recount in (*SHARED, *recounts):
        for item in holdings.of(recount.kind):
            kept, found = recount.kept(item), recount.found(item, holdings)
            counted += 1
            if kept != found:
                what = f"{type(item).__name__}.{recount.name}"
                raise InvariantViolated("counter", f"{name} counts {kept!r} in {what}: {found!r}")
    return counted


def _deliveries(holdings: Holdings) -> Iterator[Any]:
    for outlet in holdings.of("Outlet"):
        yield from outlet.parked
        yield from outlet.waiting
        for sent in outlet.sent.values():
            yield from sent


def _whole(entry: Any) -> Any:
    """Return the entry that represents an entry since both were joined."""
    while getattr(entry, "part_of", None) is not None:
        entry = entry.part_of
    return entry


def nonzero(counts: Any) -> dict[Any, int]:
    """Return the counts of a mapping that are not 0."""
    return {key: count for key, count in counts.items() if count}


SHARED = (
    Recount(
        "Outlet",
        "unacknowledged",
        lambda outlet: outlet.unacknowledged,
        lambda outlet, _: sum(len(each.left) for sent in outlet.sent.values() for each in sent),
    ),
    Recount("Outlet", "holds", lambda outlet: outlet.holds, lambda outlet, _: 0),
    Recount(
        "Parcel",
        "open",
        lambda parcel: parcel.open,
        lambda parcel, holdings: holdings.deliveries_of(parcel),
    ),
    Recount(
        "OwnSubscriptions",
        "started",
        lambda clients: clients.started,
        lambda clients, _: sum(
            local.started
            for client in clients._clients.values()
            for local in client.subscriptions.values()
        ),
    ),
    Recount(
        "Window",
        "publications",
        lambda window: window.publications,
        lambda window, _: sum(map(len, window._runs)),
    ),
)
"""Counters of the parts that all protocols share, and of clients."""
