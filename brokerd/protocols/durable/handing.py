"""The division of a run among clients, in as few parts as possible.

Paper: [DS03] §4.1 (the consolidated stream delivers to all that are live).
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from brokerd.model.identity import ClientId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.durable.lanes import Lane
from brokerd.protocols.parts.selection import RunSelection

MANY: Final = 8
"""The number of clients from which most receive a small part of a run."""


def parts_by_client(
    run: PublicationRun, wanted: Sequence[Sequence[Lane]]
) -> Iterator[tuple[PublicationRun, Sequence[Lane]]]:
    """Yield parts of a run with lanes of a client that are all owed the part.

    The parts of a client are in order.

    Args:
        wanted: the lanes for each place in the run's attribute table.
    """
    by_client: dict[ClientId, dict[int, list[Lane]]] = {}
    for place, lanes in enumerate(wanted):
        for lane in lanes:
            of_client = by_client.setdefault(lane.subscription.client, {})
            of_client.setdefault(place, []).append(lane)
    selection = RunSelection(run, are_many=len(by_client) >= MANY)
    for places in by_client.values():
        lanes = next(iter(places.values()))
        if all(each == lanes for each in places.values()):
            yield selection.select([*places]), lanes
        else:
            yield from _stretches(run, places)


def _stretches(
    run: PublicationRun, places: Mapping[int, Sequence[Lane]]
) -> Iterator[tuple[PublicationRun, Sequence[Lane]]]:
    """Yield the parts of a run at some places, divided wherever the lanes change."""

    def wanting(position: int) -> list[int]:
        return [lane.subscription.identity for lane in places[run.attribute_index[position]]]

    positions = [n for n, place in enumerate(run.attribute_index) if place in places]
    for _, same in groupby(positions, wanting):
        some = [*same]
        yield run.select(some), places[run.attribute_index[some[0]]]
