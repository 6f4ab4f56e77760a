"""Log lines of many processes on many hosts, on one time line.

Hosts' wall clocks may be wrong. What a line's time is is told by the difference between the
host's clock and ours when it was read, wherever that is more than the way to the host takes.
"""

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from brokerd.agent.client import AgentClient
from brokerd.errors import ControlError
from pubsubctl.console.console import visible

NOISY_FILES = ("stats.jsonl",)
AGENT = "agent"
"""How the agent itself is called where processes are named; its log is in a folder so called."""

_STAMP = re.compile(r"(\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}),(\d{3}) ")


@dataclass(frozen=True)
class LogLine:
    """One line.

    Attributes:
        wall_ns: when it was written, by our wall clock; of a line without a time of its own,
            that of the line before it; 0 where none before it has one.
    """

    wall_ns: int
    host: str
    process: str
    file: str
    text: str

    def to_mapping(self) -> dict[str, Any]:
        """For --json."""
        return asdict(self)


@dataclass(frozen=True)
class HostTime:
    """How stamps of a host become times of ours.

    Attributes:
        monotonic_to_wall_ns: to be added to its CLOCK_MONOTONIC.
        wall_ahead_ns: its wall clock minus ours; 0 where that cannot be told from nothing.
        utc_offset_s: what its local times are ahead of UTC.
    """

    monotonic_to_wall_ns: int
    wall_ahead_ns: int
    utc_offset_s: int

    @classmethod
    def of_answer(
        cls, answer: Mapping[str, Any], asked_wall_ns: int, heard_wall_ns: int
    ) -> "HostTime":
        """From an agent's answer, and our wall clock before and after."""
        ahead_ns = answer["wall_ns"] - (asked_wall_ns + heard_wall_ns) // 2
        if abs(ahead_ns) <= heard_wall_ns - asked_wall_ns:
            ahead_ns = 0
        apart_ns = answer["wall_ns"] - answer["monotonic_ns"]
        return cls(apart_ns - ahead_ns, ahead_ns, answer["utc_offset_s"])

    def wall_ns(self, text: str) -> int | None:
        """When a line was written, as far as it says so."""
        if text.startswith('{"t_ns"'):
            try:
                stamp = json.loads(text)["t_ns"]
            except (ValueError, KeyError):
                return None
            return stamp + self.monotonic_to_wall_ns if isinstance(stamp, int) else None
        if found := _STAMP.match(text):
            moment = datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
            seconds = int(moment.timestamp()) - self.utc_offset_s
            return seconds * 10**9 + int(found[2]) * 10**6 - self.wall_ahead_ns
        return None


@dataclass
class Tail:
    """One folder of logs of one process, read on and on.

    Attributes:
        folder: below the host's root; "" for where the process prints.
        with_noise: whether statistics, a line a second, are wanted too.
    """

    host: str
    process: str
    folder: str = ""
    with_noise: bool = False
    last_bytes: int = 65_536
    _after: dict[str, int] = field(default_factory=dict)
    _torn: dict[str, bytes] = field(default_factory=dict)
    _last_ns: dict[str, int] = field(default_factory=dict)

    async def read(self, agent: AgentClient) -> list[LogLine]:
        """The lines that are new; what is there already the first time.

        Raises:
            ControlError: the agent does not answer, or does not know the process.
        """
        name = "" if self.process == AGENT else self.process
        found: list[LogLine] = []
        while True:
            asked_ns = time.time_ns()
            answer = await agent.tail(name, self._after, self.folder, self.last_bytes)
            host_time = HostTime.of_answer(answer, asked_ns, time.time_ns())
            files = answer["files"]
            found += [line for row in files for line in self.take(row, host_time)]
            if all(row["offset"] + len(row["data"]) >= row["size_bytes"] for row in files):
                return found

    def take(self, row: Mapping[str, Any], host_time: HostTime) -> Iterator[LogLine]:
        """The whole lines in a piece of a file; a torn one waits for its end."""
        name = row["name"]
        is_first = name not in self._after
        self._after[name] = row["offset"] + len(row["data"])
        if name in NOISY_FILES and not self.with_noise:
            return
        whole, _, self._torn[name] = (self._torn.get(name, b"") + row["data"]).rpartition(b"\n")
        lines = whole.split(b"\n") if whole else []
        if is_first and row["offset"]:
            lines = lines[1:]  # begins inside of one
        for line in lines:
            text = line.decode("utf-8", "replace").rstrip("\r")
            wall_ns = host_time.wall_ns(text) or self._last_ns.get(name, 0)
            self._last_ns[name] = wall_ns
            yield LogLine(wall_ns, self.host, self.process, name, text)


def merged(lines: Iterable[LogLine]) -> list[LogLine]:
    """By time; lines of one file stay in their order."""
    return sorted(lines, key=lambda line: line.wall_ns)


def selected(
    lines: Iterable[LogLine], pattern: re.Pattern[str], since_wall_ns: int
) -> list[LogLine]:
    """Those that match and are young enough; lines of which no time is known are not too old."""
    return [
        line
        for line in lines
        if pattern.search(line.text) and (not line.wall_ns or line.wall_ns >= since_wall_ns)
    ]


def shown(line: LogLine, *, with_time: bool, names: int) -> str:
    """A line for people; what could steer a terminal is made visible."""
    text = visible(line.text)
    if not with_time:
        return f"{line.process} {line.file} | {text}"
    at = "--:--:--.---"
    if line.wall_ns:
        moment = time.localtime(line.wall_ns // 10**9)
        at = f"{time.strftime('%H:%M:%S', moment)}.{line.wall_ns // 10**6 % 1000:03d}"
    return f"{at} {f'{line.host}/{line.process}':{names}} {line.file} | {text}"


def last_of_each(lines: Sequence[LogLine], most: int) -> list[LogLine]:
    """The last so many of each file."""
    by_file: dict[tuple[str, str, str], list[LogLine]] = {}
    for line in lines:
        by_file.setdefault((line.host, line.process, line.file), []).append(line)
    return [line for of_file in by_file.values() for line in of_file[-most:]]


async def run_folder(agent: AgentClient, process: str) -> str:
    """Where a broker writes for the run it is in, below its host's root; "" outside of runs."""
    try:
        run_id = (await agent.broker(process, "status", timeout_ms=2_000))["run_id"]
    except ControlError as error:
        if error.kind == "closed":
            raise
        return ""  # it does not run; what it printed is there all the same
    return f"run/{run_id}/{process}" if run_id else ""
