"""The choice of a broker in a neighbouring cell: link bundles, and the link status of brokers.

Each broker announces the cells that it reaches to its neighbours, over its own links and over
those of other members of its cell. Fail-over and fail-back follow from that: the best broker at
present is chosen, and among equals a fixed order of each pubend decides.

Paper: [GD02] §3.1 (link bundles, static rotation, sideways routing, link status). Deviates: a
status covers all cells behind a link and is sent when it changes, because sessions lose nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.protocols.gryphon.messages import EVERYWHERE, LinkStatus
from brokerd.protocols.gryphon.routes import Cell, Routes

Way = tuple[BrokerNumber, Cell]
"""The receiver, and the only target cell; EVERYWHERE for all cells below the receiver."""

_NOTHING: Final = (0, 0)


class Links:
    """The present routes to neighbouring cells from one broker.

    Args:
        has_session: returns whether a message can be sent to a neighbour now.
    """

    def __init__(self, routes: Routes, has_session: Callable[[BrokerNumber], bool]) -> None:
        self._routes = routes
        self._has_session = has_session
        self._heard: dict[BrokerNumber, tuple[int, int]] = {}
        self._said: dict[BrokerNumber, LinkStatus] = {}
        self._down: dict[tuple[int, Cell, bool], tuple[Way, ...]] = {}

    def on_session_change(self, peer: BrokerNumber) -> None:
        """Discard the status of a neighbour after the start or end of a session."""
        self._heard.pop(peer, None)
        self._said.pop(peer, None)
        self._down.clear()

    def record_cells(self, peer: BrokerNumber, message: LinkStatus) -> None:
        """Record the cells that a neighbour reaches.

        Raises:
            RemoteProtocolError: a cell does not exist.
        """
        known = range(self._routes.cell_count)
        if any(cell not in known for cell in (*message.direct, *message.around)):
            raise RemoteProtocolError(peer, f"cells of {len(known)}: {message}"[:300])
        self._heard[peer] = _bits(message.direct), _bits(message.around)
        self._down.clear()

    def news(self) -> Iterator[tuple[BrokerNumber, LinkStatus]]:
        """Yield the link status of this broker for neighbours with an older status."""
        routes = self._routes
        if routes.is_plain:
            return
        direct = {cell: self._direct(cell) for cell in routes.cells}
        around = {cell: self._around(cell) & ~direct[cell] for cell in routes.cells}
        for peer in routes.neighbours:
            if not self._has_session(peer):
                continue
            onward = [cell for cell in routes.cells if cell != routes.cell_of(peer)]
            beside = () if peer in routes.peers else onward
            said = LinkStatus(
                _cells(sum(direct[cell] for cell in onward)),
                _cells(sum(around[cell] for cell in beside)),
            )
            if self._said.get(peer) != said:
                self._said[peer] = said
                yield peer, said

    # ------------------------------------------------------------ receivers

    def down(self, stream: StreamId, cell: Cell, *, sideways: bool = True) -> tuple[Way, ...]:
        """Return the receivers for a cell below: one broker, unless no broker reaches all cells.

        Args:
            sideways: whether another member of this broker's cell may forward.
        """
        key = stream.publisher, cell, sideways
        found = self._down.get(key)
        if found is None:
            found = self._down[key] = tuple(self._find_down(stream.publisher, cell, sideways))
        return found

    def up(
        self, stream: StreamId, via: BrokerNumber | None, *, sideways: bool = True
    ) -> tuple[BrokerNumber, ...]:
        """Return the brokers to ask for a stream: `via`, or else all that reach its pubend.

        Args:
            via: the broker that last sent events of the stream.
        """
        routes = self._routes
        upstream, _ = routes.of(stream)
        assert upstream is not None, f"{stream} has its pubend here"
        goal = 1 << routes.cell_of(stream.broker)
        near = [each for each in self._present(upstream) if sum(self._reach(upstream, each)) & goal]
        if via in near:
            return (via,)
        if near or not sideways:
            return tuple(near)
        beside = [each for each in routes.peers if self._heard.get(each, _NOTHING)[0] & goal]
        return tuple(_rotate(beside, stream.publisher)[:1])

    def _find_down(self, pubend: int, cell: Cell, sideways: bool) -> Iterator[Way]:
        near = [
            (each, *self._reach(cell, each))
            for each in _rotate(self._routes.linked_members(cell), pubend)
            if self._has_session(each)
        ]
        near.sort(key=lambda item: -item[1].bit_count())  # stable: then the order of rotation
        covered = 0
        for each, direct, around in near:
            if (direct | around) & ~covered:
                covered |= direct | around
                yield each, EVERYWHERE
        if not sideways:
            return
        for each in _rotate(self._routes.peers, pubend):
            direct = self._heard.get(each, _NOTHING)[0] & self._routes.behind[cell]
            if self._has_session(each) and direct & ~covered:
                covered |= direct
                yield each, cell

    # ------------------------------------------------------------ reachable cells

    def _present(self, cell: Cell) -> list[BrokerNumber]:
        return [each for each in self._routes.linked_members(cell) if self._has_session(each)]

    def _reach(self, cell: Cell, member: BrokerNumber) -> tuple[int, int]:
        """Return the cells behind `cell` that a member reaches: directly, and around.

        A member without a status is assumed to reach all cells.
        """
        behind = self._routes.behind[cell]
        if member not in self._heard:
            return behind, 0
        direct, around = self._heard[member]
        return (direct & behind) | 1 << cell, around & behind & ~direct & ~(1 << cell)

    def _direct(self, cell: Cell) -> int:
        found = 0
        for member in self._present(cell):
            direct, around = self._reach(cell, member)
            found |= direct | around
        return found

    def _around(self, cell: Cell) -> int:
        found = 0
        for peer in self._routes.peers:
            if self._has_session(peer):
                found |= self._heard.get(peer, _NOTHING)[0]
        return found & self._routes.behind[cell]


def _rotate(members: Sequence[BrokerNumber], by: int) -> list[BrokerNumber]:
    place = by % len(members) if members else 0
    return [*members[place:], *members[:place]]


def _bits(cells: Sequence[Cell]) -> int:
    found = 0
    for cell in cells:
        found |= 1 << cell
    return found


def _cells(bits: int) -> tuple[Cell, ...]:
    return tuple(cell for cell in range(bits.bit_length()) if bits >> cell & 1)
