"""The disk of one simulated broker: rows and logs; a crash loses writes that were not durable."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import Any

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.interface import (
    Append,
    Change,
    Chop,
    Event,
    LogEffect,
    LogEnds,
    Persisted,
    Read,
    RecordsRead,
    Truncate,
)
from brokerd.protocols.parts.bounds import LogBounds
from brokerd.sessions.messages import START_BYTES
from brokerd.sessions.state_marks import StateLedger, StateStart
from brokerd.simulator.world.clock import Lane, Schedule
from brokerd.units import MILLISECOND_NS

LAZY_NS = 50 * MILLISECOND_NS
LARGEST_PAGE = 4
"""A small limit of records per read, so that cores do not treat one answer as complete."""


@dataclass(slots=True)
class _Log:
    """Records from index `first` on."""

    first: int = 1
    records: list[bytes] = field(default_factory=list)


class SimulatedLogs:
    """Logs with changes that are first accepted from a core, and durable after `write`.

    A disk decides the time of a write. The order of writes is the order of acceptance.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._logs = {name: _Log() for name in names}
        self._bounds = LogBounds(self.ends())

    def ends(self) -> Mapping[str, LogEnds]:
        """Return the ends of the durable logs."""
        return {
            name: LogEnds(log.first, log.first + len(log.records))
            for name, log in self._logs.items()
        }

    def contents(self) -> list[tuple[str, int, list[bytes]]]:
        """Return all durable logs: name, first index, records."""
        return [(name, log.first, log.records) for name, log in self._logs.items()]

    def put_back(self, contents: Iterable[tuple[str, int, Iterable[bytes]]]) -> None:
        """Replace all durable records by an earlier result of `contents`; () for nothing."""
        self._logs = {name: _Log() for name in self._logs}
        for name, first, records in contents:
            self._logs[name] = _Log(first, [*records])
        self._bounds = LogBounds(self.ends())

    def take(self, effect: LogEffect) -> None:
        """Assert that the core may apply an effect after all accepted effects."""
        if isinstance(effect, Append):
            self._bounds.append(effect)
        elif isinstance(effect, Read):
            self._bounds.read(effect)
        elif isinstance(effect, Chop):
            self._bounds.chop(effect)
        else:
            self._bounds.truncate(effect)

    def write(self, effect: LogEffect, page: int) -> Event | None:
        """Make an effect durable, or read up to `page` records; return the event for the core."""
        log = self._logs[effect.log]
        if isinstance(effect, Append):
            log.records.extend(b"".join(pieces) for pieces in effect.records)
            return Persisted(effect.token) if effect.token is not None else None
        if isinstance(effect, Read):
            start, end = effect.first - log.first, effect.end - log.first
            records = tuple(log.records[start : min(end, start + page)])
            assert records, f"{effect} of a log from {log.first} on"
            return RecordsRead(effect.log, effect.first, records)
        if isinstance(effect, Truncate):
            del log.records[effect.next - log.first :]
        elif effect.first > log.first:
            del log.records[: effect.first - log.first]
            log.first = effect.first
        return None

    def crash(self) -> None:
        """Drop effects that were accepted and not written."""
        self._bounds = LogBounds(self.ends())


class SimulatedDisk:
    """A disk whose transactions become durable one after another, in the order of commits.

    Changes of logs have an order of their own. A crash keeps any number of unconfirmed writes from
    the front.

    Args:
        delay_ns: minimum time until a transaction with a token is durable; 0 without durations, so
            that no time is drawn.
        logs: names of the logs.
        report: receives events for the core.

    Attributes:
        ledger: record of starts and durable writes, as in a state folder.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        schedule: Schedule,
        random: Random,
        delay_ns: int,
        logs: Iterable[str],
        report: Callable[[Event], None],
    ) -> None:
        self._broker = broker
        self._lane_name = f"{broker}:disk"
        self._log_lane_name = f"{broker}:log"
        self._schedule = schedule
        self._random = random
        self._delay_ns = delay_ns
        self._report = report
        self._tables: dict[str, dict[str, Any]] = {}
        self._waiting: deque[tuple[int, tuple[Change, ...]]] = deque()
        self._committed = 0
        self._crashes = 0
        self.lane = Lane(schedule, self._lane_name)
        self._logs = SimulatedLogs(logs)
        self._log_effects: deque[tuple[int, LogEffect]] = deque()
        self._logs_changed = 0
        self.log_lane = Lane(schedule, self._log_lane_name)
        self._folders = 0
        self.ledger = self._make_ledger()

    def begin(self, start: int, witnessed: int = 0) -> None:
        """Record a start of the broker.

        Args:
            start: number of the start; no start of this broker has the same number.
            witnessed: the highest incarnation of this folder that a neighbour has proved.
        """
        ledger = self.ledger
        present = StateStart(
            max(witnessed, *ledger.starts, 0) + 1,
            start.to_bytes(START_BYTES),
            ledger.commits,
            ledger.groups,
        )
        starts = [*ledger.starts.values(), present]
        self.ledger = StateLedger.from_starts(ledger.key, ledger.lineage, starts, ledger.vouched)

    def commit(self, changes: tuple[Change, ...], token: int | None) -> None:
        """Accept a transaction; with a token, report its durability."""
        for change in changes:
            _check_storable(change.value, f"broker {self._broker}: {change}")
        self._committed += 1
        self._waiting.append((self._committed, changes))
        if token is None and len(self._waiting) > 1 and not self._schedule.adversarial:
            return  # the waiting group includes this transaction
        delay_ns = self._draw_delay(LAZY_NS if token is None else self._delay_ns)
        lane = self.lane if token is not None else Lane(self._schedule, self._lane_name)
        self._schedule.post(lane, delay_ns, self._flush, self._crashes, self._committed, token)

    def log(self, effect: LogEffect) -> None:
        """Change or read a log; an answer follows for effects with an answer."""
        self._logs.take(effect)
        self._logs_changed += 1
        self._log_effects.append((self._logs_changed, effect))
        answered = isinstance(effect, Read)
        if isinstance(effect, Append):
            answered = effect.token is not None
        elif not answered:
            return  # the next write includes this effect
        delay_ns = self._draw_delay(self._delay_ns if answered else LAZY_NS)
        lane = self.log_lane if answered else Lane(self._schedule, self._log_lane_name)
        self._schedule.post(lane, delay_ns, self._write_logs, self._crashes, self._logs_changed)

    def ends(self) -> Mapping[str, LogEnds]:
        """Return the ends of the logs for a restarted broker."""
        return self._logs.ends()

    @property
    def has_unwritten(self) -> bool:
        """True if a crash may lose writes."""
        return bool(self._waiting or self._log_effects)

    def contents(self) -> tuple[Any, ...]:
        """Return all durable rows and logs."""
        return self.recovered(), self._logs.contents()

    def records_of(self, log: str) -> tuple[int, Sequence[bytes]]:
        """Return the index of the first durable record of a log, and the durable records."""
        return next(
            (first, records) for name, first, records in self._logs.contents() if name == log
        )

    def unwritten(self) -> tuple[Any, ...]:
        """Return the accepted transactions and changes of logs that a crash may lose."""
        waiting = [changes for _, changes in self._waiting]
        return waiting, [effect for _, effect in self._log_effects]

    def copy(self) -> tuple[Any, ...]:
        """Return a copy of all durable rows and logs, for `put_back`."""
        return deepcopy((self._tables, self._logs.contents(), self.ledger))

    def put_back(self, copy: tuple[Any, ...] | None) -> None:
        """Replace all durable data by an older copy, or by nothing; only after a crash."""
        if copy is None:
            copy = ({}, (), self._make_ledger())
        self._tables, logs, self.ledger = deepcopy(copy)
        self._logs.put_back(logs)

    def crash(self, kept: int | None = None) -> None:
        """Keep durable data and a front part of the other writes.

        Args:
            kept: maximum number of transactions and of changes of logs; None draws the number.
        """
        if self._log_effects:
            for _ in range(self._draw_kept(len(self._log_effects), kept)):
                self._write_log(self._log_effects.popleft()[1], LARGEST_PAGE)
            self._log_effects.clear()
        self._logs.crash()
        self.log_lane = Lane(self._schedule, self._log_lane_name)
        for _ in range(self._draw_kept(len(self._waiting), kept)):
            self._apply(self._waiting.popleft()[1])
        self._waiting.clear()
        self._crashes += 1
        self.lane = Lane(self._schedule, self._lane_name)

    def is_void(self, arguments: tuple[Any, ...]) -> bool:
        """Return True if an entry of a lane is of a write that a crash has lost."""
        crashes: int = arguments[0]
        return crashes != self._crashes

    def recovered(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the rows for a restarted broker: table → key → value, tuples as lists."""
        return {
            table: {key: _as_stored(value) for key, value in rows.items()}
            for table, rows in self._tables.items()
        }

    def rows_of(self, table: str) -> Mapping[str, Any]:
        """Return the durable rows of one table, as the core committed them; not a copy."""
        return self._tables.get(table, {})

    def _make_ledger(self) -> StateLedger:
        """Return the ledger of a new folder, with a key of its own."""
        self._folders += 1
        return StateLedger(f"{self._broker} {self._folders}".encode(), 0, {})

    def _draw_delay(self, least_ns: int) -> int:
        return least_ns + int(self._random.random() * least_ns) if self._delay_ns else 0

    def _draw_kept(self, unwritten: int, kept: int | None) -> int:
        return self._random.randrange(unwritten + 1) if kept is None else min(kept, unwritten)

    def _flush(self, crashes: int, number: int, token: int | None) -> None:
        if crashes != self._crashes:
            return
        if token is None and not self._schedule.adversarial:
            number = self._committed  # the whole group
        while self._waiting and self._waiting[0][0] <= number:
            self._apply(self._waiting.popleft()[1])
        if token is not None:
            self._report(Persisted(token))

    def _write_logs(self, crashes: int, number: int) -> None:
        if crashes != self._crashes:
            return
        while self._log_effects and self._log_effects[0][0] <= number:
            effect = self._log_effects.popleft()[1]
            page = self._random.randint(1, LARGEST_PAGE) if isinstance(effect, Read) else 0
            event = self._write_log(effect, page)
            if event is not None:
                self._report(event)

    def _write_log(self, effect: LogEffect, page: int) -> Event | None:
        self.ledger.groups += isinstance(effect, Append)
        return self._logs.write(effect, page)

    def _apply(self, changes: tuple[Change, ...]) -> None:
        self.ledger.commits += 1
        for change in changes:
            rows = self._tables.setdefault(change.table, {})
            if change.value is None:
                rows.pop(change.key, None)
            else:
                rows[change.key] = change.value


def _check_storable(value: Any, where: str) -> None:
    if isinstance(value, list | tuple):
        for item in value:
            assert item is not None, f"{where}: None inside a stored value"
            _check_storable(item, where)
    else:
        assert value is None or isinstance(value, str | int | bytes), f"{where}: cannot be stored"


def _as_stored(value: Any) -> Any:
    return [_as_stored(item) for item in value] if isinstance(value, list | tuple) else value
