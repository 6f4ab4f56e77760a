"""The disk of one simulated broker: what a crash loses is what was not yet durable."""

from collections import deque
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from brokerd.model.identity import BrokerNumber
from brokerd.model.publication import PublicationRun
from brokerd.protocols.interface import Append, Change, Release
from brokerd.simulator.world.clock import MILLISECOND_NS, Lane, Schedule

LAZY_NS = 50 * MILLISECOND_NS


class SimulatedDisk:
    """Transactions become durable one after another, in the order they were committed.

    A crash keeps some of those that nobody was told about: any number from the front.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        schedule: Schedule,
        random: Random,
        delay_ns: int,
        persisted: Callable[[int], None],
    ) -> None:
        self._broker = broker
        self._lane_name = f"{broker}:disk"
        self._log_lane_name = f"{broker}:log"
        self._schedule = schedule
        self._random = random
        self._delay_ns = delay_ns
        self._persisted = persisted
        self._tables: dict[str, dict[str, Any]] = {}
        self._waiting: deque[tuple[int, tuple[Change, ...]]] = deque()
        self._committed = 0
        self._crashes = 0
        self.lane = Lane(schedule, self._lane_name)
        self._logged: list[PublicationRun] = []
        self._appending: deque[Append | Release] = deque()
        self.log_lane = Lane(schedule, self._log_lane_name)

    def commit(self, changes: tuple[Change, ...], token: int | None) -> None:
        """Take a transaction in; with a token, say when it is durable."""
        for change in changes:
            _check_storable(change.value, f"broker {self._broker}: {change}")
        self._committed += 1
        self._waiting.append((self._committed, changes))
        delay_ns = LAZY_NS if token is None else self._delay_ns
        if token is None and len(self._waiting) > 1 and not self._schedule.adversarial:
            return  # the group that is already waiting takes it along
        delay_ns += int(self._random.random() * delay_ns)
        lane = self.lane if token is not None else Lane(self._schedule, self._lane_name)
        self._schedule.post(lane, delay_ns, self._flush, self._crashes, self._committed, token)

    def append(self, effect: Append | Release) -> None:
        """Take something for the publication log; what is appended is said to be durable."""
        self._appending.append(effect)
        if isinstance(effect, Append):
            delay_ns = self._delay_ns + int(self._random.random() * self._delay_ns)
            self._schedule.post(
                self.log_lane, delay_ns, self._write_log, self._crashes, effect.token
            )

    def logged(self) -> tuple[PublicationRun, ...]:
        """What a restarted broker finds in its publication log."""
        return tuple(self._logged)

    def crash(self) -> None:
        """Keep what was durable and, of the rest, a random part from the front."""
        if self._appending:
            for _ in range(self._random.randrange(len(self._appending) + 1)):
                self._write_one(self._appending.popleft())
            self._appending.clear()
        self.log_lane = Lane(self._schedule, self._log_lane_name)
        for _ in range(self._random.randrange(len(self._waiting) + 1)):
            self._apply(self._waiting.popleft()[1])
        self._waiting.clear()
        self._crashes += 1
        self.lane = Lane(self._schedule, self._lane_name)

    def recovered(self) -> Mapping[str, Mapping[str, Any]]:
        """What a restarted broker finds: table → key → value, tuples as lists."""
        return {
            table: {key: _as_stored(value) for key, value in rows.items()}
            for table, rows in self._tables.items()
        }

    def _flush(self, crashes: int, number: int, token: int | None) -> None:
        if crashes != self._crashes:
            return
        if token is None and not self._schedule.adversarial:
            number = self._committed  # the whole group
        while self._waiting and self._waiting[0][0] <= number:
            self._apply(self._waiting.popleft()[1])
        if token is not None:
            self._persisted(token)

    def _write_log(self, crashes: int, token: int) -> None:
        if crashes != self._crashes:
            return
        while self._appending:
            effect = self._appending.popleft()
            self._write_one(effect)
            if isinstance(effect, Append) and effect.token == token:
                break
        self._persisted(token)

    def _write_one(self, effect: Append | Release) -> None:
        if isinstance(effect, Append):
            self._logged.append(effect.run)
        else:
            source, through = effect.source, effect.through
            self._logged = [
                run for run in self._logged if run.source != source or run.last > through
            ]

    def _apply(self, changes: tuple[Change, ...]) -> None:
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
