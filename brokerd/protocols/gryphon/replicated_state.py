"""The state of a broker with copies at replicas: the owner's side.

A write is durable on this broker's own disk and, with this disk, on a majority of all disks. The
replicas' acknowledgements count within a single session only: a replica that restarted, with a disk
or without, counts again once the copy is whole in a new session.

A broker with lost state restores the copy with the highest term and position. So many answers are
required that every acknowledged write is in at least a single answer.

Paper: none; [GD02] §4 leaves replicated logging disks to others.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber
from brokerd.protocols.gryphon import copies
from brokerd.protocols.gryphon.messages import CopyState, CopyStored, CopyWrite, CopyWrites
from brokerd.protocols.gryphon.replication import (
    RowKey,
    WriteKind,
    end_writes,
    majority_of,
    pack_row,
    rows_write,
    unpack_row,
)
from brokerd.protocols.interface import Append, Chop, Commit, Effect, LogEnds, Read, Truncate

FILL_RECORDS: Final = 256
"""Records of a log that one message to a new replica has at most."""


@dataclass(slots=True)
class _Fill:
    """The fill of a replica's copy.

    Attributes:
        cursors: per log, the next record to send.
        reading: the log of the records that are being read; "" for none.
        released: per log, the first record, if records that were not sent are released.
        in_flight: messages that the replica has not acknowledged; the first begins the copy.
    """

    cursors: dict[str, int]
    reading: str = ""
    released: dict[str, int] = field(default_factory=dict)
    in_flight: int = 1


class ReplicatedState:
    """The writes of this broker, and the replicas with these writes.

    Args:
        replicas: the number of all disks, this disk included.

    Attributes:
        brokers: the replicas.
        position: the number of the last write of this incarnation.
        held: per replica with a whole copy, the last acknowledged write.
    """

    def __init__(
        self, broker: BrokerNumber, brokers: Sequence[BrokerNumber], replicas: int
    ) -> None:
        self.brokers = tuple(brokers)
        self.position = 1
        self.held: dict[BrokerNumber, int] = {}
        self._broker = broker
        self._others = majority_of(replicas) - 1
        self._term = 0
        self._lineage = 0
        self._rows: dict[RowKey, bytes] = {}
        self._ends: dict[str, LogEnds] = {}
        self._begun: dict[str, int] = {}
        self._replaced: dict[str, int] = {}
        self._fills: dict[BrokerNumber, _Fill] = {}
        self._live: dict[BrokerNumber, None] = {}
        self._awaited = 0
        self._tokens: dict[int, int] = {}
        self._written: list[tuple[int, int]] = []

    def begin(
        self,
        term: int,
        lineage: int,
        rows: Mapping[str, Mapping[str, Any]],
        logs: Mapping[str, LogEnds],
    ) -> None:
        """Begin an incarnation with the state on this broker's disk."""
        self._term, self._lineage = term, lineage
        self._ends = dict(logs)
        self._begun = {name: ends.next for name, ends in logs.items()}
        for table, content in rows.items():
            for key, value in content.items():
                self._rows[table, key] = pack_row(table, key, value)

    # ------------------------------------------------------------ writes

    def on_effects(self, effects: Iterable[Effect]) -> list[tuple[BrokerNumber, CopyWrites]]:
        """Number the writes among effects; return the messages for replicas."""
        writes: list[CopyWrite] = []
        tokens: list[int] = []
        for each in effects:
            if isinstance(each, Commit):
                writes.append(self._on_rows(each))
                tokens += [each.token] if each.token is not None else []
            elif isinstance(each, Append):
                if each.records:
                    writes.append(self._on_records(each))
                tokens += [each.token] if each.token is not None else []
            elif isinstance(each, Chop):
                ends = self._ends[each.log]
                if each.first > ends.first:
                    self._ends[each.log] = LogEnds(each.first, ends.next)
                    writes.append(CopyWrite(WriteKind.CHOP, each.log, each.first, 0, ()))
            elif isinstance(each, Truncate):
                ends = self._ends[each.log]
                self._ends[each.log] = LogEnds(ends.first, each.next)
                self._replaced[each.log] = min(self._replaced.get(each.log, each.next), each.next)
                writes.append(CopyWrite(WriteKind.TRUNCATE, each.log, each.next, 0, ()))
        if writes:
            self.position += 1
        for token in tokens:
            self._tokens[token] = self.position
        is_awaited = bool(tokens) and self.position > self._awaited
        if is_awaited:
            self._awaited = self.position
        if not writes and not is_awaited:
            return []
        message = CopyWrites(self._broker, self._term, self.position, is_awaited, tuple(writes))
        return [(peer, message) for peer in self._live]

    def _on_rows(self, commit: Commit) -> CopyWrite:
        write = rows_write(commit.changes)
        for change, packed in zip(commit.changes, write.items, strict=True):
            if change.value is None:
                self._rows.pop((change.table, change.key), None)
            else:
                self._rows[change.table, change.key] = packed
        return write

    def _on_records(self, append: Append) -> CopyWrite:
        ends = self._ends[append.log]
        self._ends[append.log] = LogEnds(ends.first, ends.next + len(append.records))
        items = tuple([b"".join(pieces) for pieces in append.records])
        return CopyWrite(WriteKind.RECORDS, append.log, ends.next, 0, items)

    def on_persisted(self, token: int) -> list[int]:
        """Record a write on this broker's disk; return the tokens that are durable now."""
        self._written.append((self._tokens.pop(token), token))
        return self.take_durable()

    def take_durable(self) -> list[int]:
        """Return the tokens of writes that are on a majority of the disks, once, in order."""
        confirmed = self.confirmed()
        found = [token for position, token in self._written if position <= confirmed]
        if found:
            self._written = [each for each in self._written if each[0] > confirmed]
        return found

    def confirmed(self) -> int:
        """Return the last write that enough replicas have for a majority with this disk."""
        if len(self.held) < self._others:
            return 0
        return sorted(self.held.values(), reverse=True)[self._others - 1]

    # ------------------------------------------------------------ replicas

    def is_majority(self, peers: Collection[BrokerNumber]) -> bool:
        """Return True if this disk and those of these brokers are a majority."""
        return sum(peer in peers for peer in self.brokers) >= self._others

    def on_session_end(self, peer: BrokerNumber) -> None:
        """Forget the copy of a replica until the next session."""
        self.held.pop(peer, None)
        self._fills.pop(peer, None)
        self._live.pop(peer, None)

    def check(self, peer: BrokerNumber, message: CopyState, *, is_stated: bool = False) -> None:
        """Check the state of a replica's copy.

        Args:
            is_stated: the replica has stated its copy before, and waits.

        Raises:
            RemoteProtocolError: the replica has a copy of a later incarnation, or states twice.
        """
        if message.term > self._term:
            raise RemoteProtocolError(
                peer, f"a copy of term {message.term}; this is incarnation {self._term}"
            )
        if is_stated or peer in self._fills or peer in self._live:
            raise RemoteProtocolError(peer, "states its copy twice in a session")

    def on_state(self, peer: BrokerNumber, message: CopyState) -> CopyWrites:
        """Begin to fill the copy of a replica, with the missing records; `check` has passed."""
        there = {each.log: LogEnds(each.first, each.next) for each in message.logs}
        writes = [CopyWrite(WriteKind.BEGIN, "", 0, 0, ())]
        fill = self._fills[peer] = _Fill({})
        for name, ends in self._ends.items():
            first, end = self._common(name, message.term, there.get(name, LogEnds()))
            fill.cursors[name] = ends.first
            if first <= ends.first < end:
                writes.append(CopyWrite(WriteKind.KEEP, name, ends.first, end, ()))
                fill.cursors[name] = end
        return CopyWrites(self._broker, self._term, 0, True, tuple(writes))

    def _common(self, log: str, term: int, there: LogEnds) -> tuple[int, int]:
        """Return the records of a replica's copy of a term that this broker's log has, too.

        Records of the term before that this disk had lost at the start were never acknowledged, and
        other records have taken their places.
        """
        end = min(there.next, self._ends[log].next, self._replaced.get(log, there.next))
        if term == self._term - 1:
            end = min(end, self._begun[log])
        elif term != self._term:
            end = 0
        return there.first, end

    def on_stored(self, peer: BrokerNumber, message: CopyStored) -> bool:
        """Record an acknowledgement; return True if the fill of the replica continues.

        Raises:
            RemoteProtocolError: the acknowledgement is of writes that were not sent.
        """
        if message.term != self._term or message.position > self.position:
            raise RemoteProtocolError(
                peer,
                f"acknowledges write {message.position} of term {message.term}; the last is "
                f"{self.position} of {self._term}",
            )
        if message.position == 0:
            if (fill := self._fills.get(peer)) is None:
                return False  # of the last messages before the end of the copy
            if not fill.in_flight:
                raise RemoteProtocolError(peer, "acknowledges a part of a copy twice")
            fill.in_flight -= 1
            return self.can_fill(peer)
        if peer not in self._live:
            raise RemoteProtocolError(peer, "acknowledges live writes without a copy")
        self.held[peer] = max(self.held.get(peer, 0), message.position)
        return False

    def can_fill(self, peer: BrokerNumber) -> bool:
        """Return True if the next part of a replica's copy may be read."""
        fill = self._fills.get(peer)
        return fill is not None and not fill.reading and fill.in_flight < copies.FILL_WINDOW

    def fill_next(self, peer: BrokerNumber) -> Read | CopyWrites:
        """Return the next read for a replica's copy, or the end that makes the copy whole."""
        fill = self._fills[peer]
        for name, ends in self._ends.items():
            if fill.cursors[name] < ends.first:
                fill.released[name] = ends.first
            cursor = fill.cursors[name] = max(fill.cursors[name], ends.first)
            if cursor < ends.next:
                fill.reading = name
                return Read(name, cursor, min(ends.next, cursor + FILL_RECORDS))
        del self._fills[peer]
        self._live[peer] = None
        self._awaited = self.position
        writes = tuple(end_writes(self._rows.values(), self._ends, self._lineage))
        return CopyWrites(self._broker, self._term, self.position, True, writes)

    def on_page(
        self, peer: BrokerNumber, log: str, first: int, records: Sequence[bytes]
    ) -> CopyWrites | None:
        """Return records for a replica's copy; None if the fill expects other records."""
        fill = self._fills.get(peer)
        if fill is None or fill.reading != log or fill.cursors[log] != first:
            return None
        fill.reading = ""
        fill.in_flight += 1
        fill.cursors[log] = first + len(records)
        writes = [CopyWrite(WriteKind.RECORDS, log, first, 0, tuple(records))]
        if released := fill.released.pop(log, 0):
            writes.insert(0, CopyWrite(WriteKind.CHOP, log, released, 0, ()))
        return CopyWrites(self._broker, self._term, 0, True, tuple(writes))

    # ------------------------------------------------------------ for people

    def describe(self) -> dict[str, Any]:
        """Return the replicas for JSON, with the number of missing writes; None without a copy."""
        return {
            str(peer): {
                "is_whole": peer in self.held,
                "lag": self.position - self.held[peer] if peer in self.held else None,
            }
            for peer in self.brokers
        }

    def lag(self) -> int:
        """Return the number of writes that wait for a majority."""
        return self.position - self.confirmed() if self._written else 0

    def describe_wait(self) -> str:
        """Return the reason for which writes are not durable, for people; "" if there is none."""
        missing = self._others - len(self.held)
        if missing <= 0:
            return ""
        return (
            f"{len(self.held) + 1} disks have a whole copy of the state, and publications are "
            f"acknowledged with {self._others + 1}"
        )


@dataclass(slots=True)
class Restoration:
    """The return of a broker's lost state from replicas.

    Args:
        replicas: the number of all disks.

    Attributes:
        answers: the copies that replicas have stated in their present sessions.
        source: the replica that sends the copy; None before enough have answered.
        rows: the rows that have arrived.
        logs: per log, the ends of the records so far.
        lineage: the lineage that the core had.
        is_whole: everything has arrived.
    """

    replicas: int
    answers: dict[BrokerNumber, CopyState] = field(default_factory=dict)
    source: BrokerNumber | None = None
    rows: dict[RowKey, Any] = field(default_factory=dict)
    logs: dict[str, LogEnds] = field(default_factory=dict)
    lineage: int = 0
    is_whole: bool = False

    @property
    def needed(self) -> int:
        """The number of whole copies that together have every acknowledged write."""
        return self.replicas - majority_of(self.replicas) + 1

    def on_state(self, peer: BrokerNumber, message: CopyState) -> None:
        """Record the whole copy at a replica."""
        if message.term:
            self.answers[peer] = message

    def on_session_end(self, peer: BrokerNumber) -> None:
        """Drop the answer of a replica, and the part of the copy that has arrived."""
        self.answers.pop(peer, None)
        if peer == self.source and not self.is_whole:
            self.source = None

    def choose(self) -> CopyState | None:
        """Choose the replica to restore from, if enough have answered; return the answer once."""
        if self.source is not None or len(self.answers) < self.needed:
            return None
        found = max(self.answers.items(), key=lambda each: (each[1].term, each[1].position))
        self.source = found[0]
        self.rows.clear()
        self.logs.clear()
        return found[1]

    def on_writes(self, message: CopyWrites) -> list[Append]:
        """Take a part of the copy; return the records to append, in order.

        Raises:
            RemoteProtocolError: the part does not follow the earlier parts.
        """
        appends: list[Append] = []
        for write in message.writes:
            if write.kind == WriteKind.RECORDS:
                ends = self.logs.get(write.log, LogEnds(write.first, write.first))
                if write.first != ends.next:
                    raise RemoteProtocolError(
                        message.owner, f"record {write.first} of {write.log}, not {ends.next}"
                    )
                self.logs[write.log] = LogEnds(ends.first, write.first + len(write.items))
                records = tuple([(each,) for each in write.items])
                appends.append(Append(write.log, records, None))
            elif write.kind == WriteKind.ROWS:
                for each in write.items:
                    table, key, value = unpack_row(each)
                    self.rows[table, key] = value
            elif write.kind == WriteKind.ENDS:
                self.logs.setdefault(write.log, LogEnds(write.first, write.end))
            elif write.kind == WriteKind.END:
                self.lineage, self.is_whole = write.first, True
        return appends

    def describe_wait(self) -> str:
        """Return the reason for which the restoration has not ended, for people."""
        if self.source is not None:
            return "its state arrives from a replica"
        return (
            f"its state is lost; {len(self.answers)} of the {self.needed} replicas that are needed "
            "to restore it have answered"
        )
