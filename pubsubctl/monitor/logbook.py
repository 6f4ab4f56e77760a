"""Log lines of many processes on many hosts, on a common time line.

Hosts' wall clocks may be wrong. The time of a line is corrected by the difference between the
host's clock and ours at the time of reading, if the difference exceeds the round trip to the host.
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
"""The name of the agent in lists of processes, and the name of the agent's log folder."""

_STAMP = re.compile(r"(\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}),(\d{3}) ")


@dataclass(frozen=True)
class LogLine:
    """A log line.

    Attributes:
        wall_ns: the time of writing, on our wall clock; for a line without a time, the time of
            the previous line; 0 if no previous line has a time.
    """

    wall_ns: int
    host: str
    process: str
    file: str
    text: str

    def to_mapping(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class HostTime:
    """The conversion of a host's time stamps to our clock.

    Attributes:
        monotonic_to_wall_ns: the addend for the host's CLOCK_MONOTONIC.
        wall_ahead_ns: the host's wall clock minus ours; 0 if within the measurement error.
        utc_offset_s: the host's local time minus UTC.
    """

    monotonic_to_wall_ns: int
    wall_ahead_ns: int
    utc_offset_s: int

    @classmethod
    def from_answer(
        cls, answer: Mapping[str, Any], requested_wall_ns: int, received_wall_ns: int
    ) -> "HostTime":
        """Return the conversion, from an agent's answer and our wall clock before and after."""
        ahead_ns = answer["wall_ns"] - (requested_wall_ns + received_wall_ns) // 2
        if abs(ahead_ns) <= received_wall_ns - requested_wall_ns:
            ahead_ns = 0
        apart_ns = answer["wall_ns"] - answer["monotonic_ns"]
        return cls(apart_ns - ahead_ns, ahead_ns, answer["utc_offset_s"])

    def wall_ns(self, text: str) -> int | None:
        """Return the time of writing, if the line contains a time."""
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
    """A continuous reader of a log folder of a process.

    Attributes:
        folder: below the host's root; "" for the process's output.
        with_noise: include statistics, which are written every second.
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
        """Return new lines; the existing lines on the first call.

        Raises:
            ControlError: the agent does not answer, or has no such process.
        """
        name = "" if self.process == AGENT else self.process
        found: list[LogLine] = []
        while True:
            requested_ns = time.time_ns()
            answer = await agent.tail(name, self._after, self.folder, self.last_bytes)
            host_time = HostTime.from_answer(answer, requested_ns, time.time_ns())
            files = answer["files"]
            found += [line for row in files for line in self.take(row, host_time)]
            if all(row["offset"] + len(row["data"]) >= row["size_bytes"] for row in files):
                return found

    def take(self, row: Mapping[str, Any], host_time: HostTime) -> Iterator[LogLine]:
        """Yield the complete lines in a piece of a file; keep a torn line until its end arrives."""
        name = row["name"]
        is_first = name not in self._after
        self._after[name] = row["offset"] + len(row["data"])
        if name in NOISY_FILES and not self.with_noise:
            return
        whole, _, self._torn[name] = (self._torn.get(name, b"") + row["data"]).rpartition(b"\n")
        lines = whole.split(b"\n") if whole else []
        if is_first and row["offset"]:
            lines = lines[1:]  # the piece begins inside of a line
        for line in lines:
            text = line.decode("utf-8", "replace").rstrip("\r")
            wall_ns = host_time.wall_ns(text) or self._last_ns.get(name, 0)
            self._last_ns[name] = wall_ns
            yield LogLine(wall_ns, self.host, self.process, name, text)


def merge_lines(lines: Iterable[LogLine]) -> list[LogLine]:
    """Return lines by time; lines of a file stay in order."""
    return sorted(lines, key=lambda line: line.wall_ns)


def select_lines(
    lines: Iterable[LogLine], pattern: re.Pattern[str], since_wall_ns: int
) -> list[LogLine]:
    """Return matching lines that are not too old; lines without a time count as recent."""
    return [
        line
        for line in lines
        if pattern.search(line.text) and (not line.wall_ns or line.wall_ns >= since_wall_ns)
    ]


def event_of(line: LogLine) -> dict[str, Any] | None:
    """Return the event of a line that is a JSON object; None for any other text."""
    if not line.text.startswith("{"):
        return None
    try:
        found = json.loads(line.text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def json_line(line: LogLine) -> str:
    """Return a line as a JSON object, for a pipe: events are objects, other lines have `text`."""
    mapping = line.to_mapping()
    if (event := event_of(line)) is not None:
        mapping = {key: value for key, value in mapping.items() if key != "text"} | {"event": event}
    return json.dumps({"schema": "pubsubctl/log-line/2", **mapping}, ensure_ascii=False)


def readable(line: LogLine) -> str:
    """Return the text of a line for people: an event as its name and its values."""
    event = event_of(line)
    if event is None or not isinstance(event.get("event"), str):
        return visible(line.text)
    values = {key: value for key, value in event.items() if key not in ("event", "t_ns")}
    fields = [f"{key}={_value(value)}" for key, value in values.items() if value not in ("", None)]
    return visible(" ".join([event["event"].replace("_", " "), *fields]))


def _value(value: Any) -> str:
    if isinstance(value, str) and value and " " not in value:
        return value
    return json.dumps(value, ensure_ascii=False)


def shown(line: LogLine, *, with_time: bool, names: int) -> str:
    """Return a line for people; terminal control characters are made visible."""
    text = readable(line)
    if not with_time:
        return f"{line.process} {line.file} | {text}"
    at = "--:--:--.---"
    if line.wall_ns:
        moment = time.localtime(line.wall_ns // 10**9)
        at = f"{time.strftime('%H:%M:%S', moment)}.{line.wall_ns // 10**6 % 1000:03d}"
    return f"{at} {f'{line.host}/{line.process}':{names}} {line.file} | {text}"


def last_of_each(lines: Sequence[LogLine], most: int) -> list[LogLine]:
    """Return the last `most` lines of each file."""
    by_file: dict[tuple[str, str, str], list[LogLine]] = {}
    for line in lines:
        by_file.setdefault((line.host, line.process, line.file), []).append(line)
    return [line for of_file in by_file.values() for line in of_file[-most:]]


async def run_folder(agent: AgentClient, process: str) -> str:
    """Return a broker's folder of the present run, below the host's root; "" outside of runs."""
    try:
        run_id = (await agent.broker(process, "status", timeout_ms=2_000))["run_id"]
    except ControlError as error:
        if error.kind == "closed":
            raise
        return ""  # not running; the process's output is there all the same
    return f"run/{run_id}/{process}" if run_id else ""
