"""Proof of the durable state of a broker, kept by its neighbours and clients.

A broker counts its durable writes. It seals the count with a key of its state folder and sends the
result, a state mark, to its neighbours and clients. Each keeps the newest mark and returns the mark
when it connects; `SessionTable` judges it. A broker with a folder that cannot have made a mark that
the broker has sealed runs on an older copy, on a clone, or on an empty folder: acknowledged state
is lost.

A neighbour that returns a mark with a right seal vouches for the folder. From then on, its marks
prove a loss only if their seals are right, so it cannot end the broker with an invented mark. A
mark of another key proves a loss, too, if its neighbour has not vouched: so a broker with a lost
disk detects the loss, whichever of its neighbours returns a mark first.

Paper: none; the papers take stable storage as given.
"""

import hmac
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from brokerd.sessions.messages import SEAL_BYTES, START_BYTES, StateMark

STARTS_KEPT: Final = 1_000
"""Starts of a state folder that stay on record; marks of older ones prove nothing."""

_NUMBER_BYTES: Final = 7

_SEALED: Final = struct.Struct(f">QQ{START_BYTES}sQQ")


class StateStart(NamedTuple):
    """One start of a broker on its state folder.

    Attributes:
        start: random number of the start; two processes never share a number.
        commits, groups: durable writes that the start found, of rows and of logs.
    """

    incarnation: int
    start: bytes
    commits: int
    groups: int

    @property
    def start_number(self) -> int:
        """The random number of the start as an integer of the wire, from 1."""
        return int.from_bytes(self.start[:_NUMBER_BYTES]) or 1


@dataclass(slots=True)
class StateLedger:
    """The starts of one state folder, and the durable writes since the last one.

    Attributes:
        key: secret of the folder.
        lineage: time in seconds at which a loss was accepted last; 0 if none was.
        vouched: neighbours that have returned a mark of this folder before.
        commits, groups: durable writes so far, of rows and of logs.
    """

    key: bytes
    lineage: int
    starts: dict[int, StateStart]
    vouched: dict[int, None] = field(default_factory=dict)
    commits: int = 0
    groups: int = 0
    _mark: StateMark | None = field(default=None, init=False)

    @classmethod
    def from_starts(
        cls, key: bytes, lineage: int, starts: Iterable[StateStart], vouched: Iterable[int]
    ) -> "StateLedger":
        """Return the ledger of a broker that has just started; the last start is its own."""
        known = {each.incarnation: each for each in starts}
        newest = known[max(known)]
        return cls(key, lineage, known, dict.fromkeys(vouched), newest.commits, newest.groups)

    @property
    def present(self) -> StateStart:
        """The start of this process."""
        return self.starts[max(self.starts)]

    def advance(self, commits: int, groups: int) -> None:
        """Count durable writes."""
        self.commits, self.groups = max(self.commits, commits), max(self.groups, groups)

    def mark(self) -> StateMark:
        """Return the mark of the present durable state."""
        mark, present = self._mark, self.present
        if mark is None or (mark.commits, mark.groups) != (self.commits, self.groups):
            values = (present.incarnation, present.start, self.commits, self.groups)
            seal = _seal(self.key, self.lineage, *values)
            mark = self._mark = StateMark(self.lineage, *values, seal)
        return mark

    def loss(self, peer: int, mark: StateMark) -> str | None:
        """Return how the mark of a neighbour proves that state is lost here; None if no loss.

        Raises:
            ValueError: the mark was made with another key, and the neighbour has vouched for this
                folder.
        """
        if mark.lineage < self.lineage:
            return None
        if not self._has_sealed(mark):
            if peer in self.vouched:
                raise ValueError("a state mark with a wrong seal")
            return (
                f"it has run as incarnation {mark.incarnation} with another state folder, "
                "which is lost"
            )
        self.vouched[peer] = None
        return self._compare(mark)

    def loss_by_client(self, mark: StateMark) -> str | None:
        """Return how a mark that a client returns proves that state is lost here; None if not so.

        A client may invent a mark: one with a wrong seal proves nothing, and no client vouches.
        """
        if mark.lineage < self.lineage or not self._has_sealed(mark):
            return None
        return self._compare(mark)

    def forget(self, peer: int) -> None:
        """Drop the voucher of a broker that has left for good."""
        self.vouched.pop(peer, None)

    def _has_sealed(self, mark: StateMark) -> bool:
        return hmac.compare_digest(mark.seal, _seal(self.key, *mark[:-1]))

    def _compare(self, mark: StateMark) -> str | None:
        """Return the loss that a mark of this folder proves; None if there is no loss."""
        if mark.lineage > self.lineage:
            return "the folder is older than the loss that was accepted last"
        present = self.present
        if mark.incarnation > present.incarnation:
            return (
                f"the folder is an older copy: incarnation {mark.incarnation} has run, "
                f"and this is {present.incarnation}"
            )
        known = self.starts.get(mark.incarnation)
        if known is None:
            return None  # of a start that is not on record any more
        if known.start != mark.start:
            return (
                f"another broker has run as incarnation {mark.incarnation} on a copy of this folder"
            )
        if known is present:
            return None
        after = self.starts[min(each for each in self.starts if each > mark.incarnation)]
        commits, groups = mark.commits - after.commits, mark.groups - after.groups
        if commits <= 0 and groups <= 0:
            return None
        return (
            f"the folder is an older copy: {max(commits, 0)} commits and {max(groups, 0)} groups "
            f"of its log are missing, which were durable in incarnation {mark.incarnation}"
        )


@dataclass(slots=True)
class StateWitness:
    """The newest state mark of each neighbour.

    Attributes:
        changed: neighbours with a mark that is not on this broker's disk yet.
    """

    marks: dict[int, StateMark] = field(default_factory=dict)
    changed: dict[int, None] = field(default_factory=dict)

    def loss(self, peer: int, mark: StateMark) -> str | None:
        """Return how an earlier mark proves that a neighbour lost state; None if none does.

        Only the neighbour itself can distinguish a clone that has run further from a restart.
        """
        known = self.marks.get(peer)
        if known is None or mark.lineage > known.lineage:
            return None
        if mark.lineage < known.lineage or mark.incarnation < known.incarnation:
            return f"incarnation {known.incarnation} has run before incarnation {mark.incarnation}"
        if mark.incarnation > known.incarnation:
            return None
        if mark.start != known.start:
            return f"another broker runs as incarnation {mark.incarnation}, too"
        return None

    def take(self, peer: int, mark: StateMark) -> None:
        """Keep a mark that a neighbour has sent, unless a newer mark is kept."""
        known = self.marks.get(peer)
        is_newer = known is None or mark[:2] > known[:2] or mark[:3] == known[:3]
        if is_newer and mark != known:
            self.marks[peer] = mark
            self.changed[peer] = None

    def forget(self, peer: int) -> None:
        """Drop the mark of a broker that has left for good."""
        self.marks.pop(peer, None)
        self.changed.pop(peer, None)


def _seal(
    key: bytes, lineage: int, incarnation: int, start: bytes, commits: int, groups: int
) -> bytes:
    content = _SEALED.pack(lineage, incarnation, start, commits, groups)
    return hmac.digest(key, content, "sha256")[:SEAL_BYTES]
