"""Stories about log lines of many hosts on one time line."""

import json
import re
from itertools import pairwise
from random import Random
from typing import Any

import pytest
import trio

from brokerd.agent.facts import read_tails
from brokerd.errors import ControlError
from pubsubctl.monitor.logbook import (
    HostTime,
    LogLine,
    Tail,
    json_line,
    last_of_each,
    merge_lines,
    select_lines,
    shown,
)

SECOND = 1_000_000_000
WALL_NS = 1_700_000_000 * SECOND


def event(t_ns: int, text: str) -> bytes:
    return json.dumps({"t_ns": t_ns, "event": text}).encode() + b"\n"


class AgentOfFolder:
    """An agent that reads a real folder, on a host with given clocks."""

    def __init__(self, folder: Any, monotonic_ns: int, wall_ahead_ns: int = 0) -> None:
        self.folder = folder
        self._monotonic_ns = monotonic_ns
        self._ahead_ns = wall_ahead_ns

    async def tail(self, process: str, after: Any, folder: str, last_bytes: int) -> Any:
        import time

        return {
            "files": read_tails(self.folder, after, last_bytes),
            "wall_ns": time.time_ns() + self._ahead_ns,
            "monotonic_ns": self._monotonic_ns,
            "utc_offset_s": 0,
        }


def read(tail: Tail, agent: Any) -> list[LogLine]:
    return trio.run(tail.read, agent)


def test_lines_are_read_once_and_partial_lines_wait(tmp_path: Any) -> None:
    log = tmp_path / "events.jsonl"
    log.write_bytes(event(5, "a") + b'{"t_ns": 6, "ev')
    tail, agent = Tail("h1", "b1"), AgentOfFolder(tmp_path, 10)
    assert [json.loads(line.text)["event"] for line in read(tail, agent)] == ["a"]
    assert read(tail, agent) == []
    with log.open("ab") as file:
        file.write(b'ent": "b"}\n' + event(7, "c"))
    assert [json.loads(line.text)["event"] for line in read(tail, agent)] == ["b", "c"]


def test_the_tail_of_a_long_file_starts_with_a_whole_line(tmp_path: Any) -> None:
    (tmp_path / "stderr.log").write_bytes(b"".join(b"line %d\n" % n for n in range(1000)))
    lines = read(Tail("h1", "b1", last_bytes=100), AgentOfFolder(tmp_path, 10))
    assert [line.text for line in lines][-2:] == ["line 998", "line 999"]
    assert all(re.fullmatch(r"line \d+", line.text) for line in lines)


def test_a_file_that_began_again_is_read_from_its_start(tmp_path: Any) -> None:
    log = tmp_path / "stderr.log"
    log.write_bytes(b"an old and long line\n")
    tail, agent = Tail("h1", "b1"), AgentOfFolder(tmp_path, 10)
    read(tail, agent)
    log.write_bytes(b"new\n")
    assert [line.text for line in read(tail, agent)] == ["new"]


def test_a_large_file_is_fetched_in_several_answers(tmp_path: Any) -> None:
    content = b"".join(b"%07d\n" % n for n in range(150_000))  # 1.2 MB
    (tmp_path / "stdout.log").write_bytes(content)
    lines = read(Tail("h1", "b1", last_bytes=1 << 30), AgentOfFolder(tmp_path, 10))
    assert [int(line.text) for line in lines] == [*range(150_000)]


@pytest.mark.parametrize("seed", range(20))
def test_a_file_that_is_read_in_pieces_has_the_lines_of_the_whole(seed: int) -> None:
    """Lines without a time have the time of the line before, in whatever piece that was."""
    random = Random(seed)
    times = HostTime(WALL_NS, 0, 0)
    lines = [event(n, f"é{n}") if random.random() < 0.5 else b"undated\r\n" for n in range(1, 20)]
    data = event(0, "first") + b"".join(lines)
    (whole,) = [[*Tail("h1", "b1").take({"name": "a", "offset": 0, "data": data}, times)]]
    tail, pieces = Tail("h1", "b1"), []
    cuts = [0, *sorted(random.sample(range(1, len(data)), 7)), len(data)]
    for begin, end in pairwise(cuts):
        other = {"name": "b", "offset": begin, "data": data[begin:end]}
        pieces += tail.take({"name": "a", "offset": begin, "data": data[begin:end]}, times)
        assert all(line.file == "b" for line in tail.take(other, times))
    assert pieces == whole
    assert len(whole) == 20
    assert all(line.wall_ns >= WALL_NS for line in whole)


def test_links_and_other_files_are_never_read(tmp_path: Any) -> None:
    (tmp_path / "secret.key").write_text("no")
    (tmp_path / "stderr.log").symlink_to(tmp_path / "secret.key")
    (tmp_path / "x.log").mkdir()
    assert read_tails(tmp_path, {}, 100) == []


@pytest.mark.parametrize("after", [{"a.log": -1}, {"a.log": "0"}, {"a.log": True}])
def test_nonsense_about_places_is_refused(tmp_path: Any, after: Any) -> None:
    with pytest.raises(ControlError):
        read_tails(tmp_path, after, 100)


def test_statistics_are_left_out_unless_wanted(tmp_path: Any) -> None:
    (tmp_path / "stats.jsonl").write_bytes(event(1, "x"))
    agent = AgentOfFolder(tmp_path, 10)
    assert read(Tail("h1", "b1"), agent) == []
    assert len(read(Tail("h1", "b1", with_noise=True), agent)) == 1


def test_both_kinds_of_stamps_become_times_of_our_clock() -> None:
    """The host's wall clock is an hour fast, CLOCK_MONOTONIC is at 50 s, the zone is UTC+1."""
    hour_ns = 3600 * SECOND
    answer = {"wall_ns": WALL_NS + hour_ns, "monotonic_ns": 50 * SECOND, "utc_offset_s": 3600}
    host = HostTime.from_answer(answer, WALL_NS - 1000, WALL_NS + 1000)
    assert host.wall_ns('{"t_ns": 49000000000, "event": "x"}') == WALL_NS - SECOND
    # 22:13:20 UTC is 1700000000; the fast clock says 23:13:20 UTC, in its zone 00:13:20.
    assert host.wall_ns("2023-11-15 00:13:19,250 INFO x: y") == WALL_NS - 750_000_000
    assert host.wall_ns("Traceback (most recent call last):") is None
    assert host.wall_ns('{"t_ns": "no"}') is None


def test_a_clock_offset_within_the_round_trip_is_no_offset() -> None:
    answer = {"wall_ns": WALL_NS + 900, "monotonic_ns": 5, "utc_offset_s": 0}
    assert HostTime.from_answer(answer, WALL_NS - 1000, WALL_NS + 1000).wall_ahead_ns == 0


def line(wall_ns: int, text: str, process: str = "b1") -> LogLine:
    return LogLine(wall_ns, "h1", process, "events.jsonl", text)


def test_lines_are_merged_by_time_and_those_of_one_file_stay_in_order() -> None:
    one = [line(1, "a"), line(5, "b"), line(5, "c")]
    two = [line(2, "x", "b2"), line(5, "y", "b2"), line(9, "z", "b2")]
    assert [each.text for each in merge_lines([*one, *two])] == ["a", "x", "b", "c", "y", "z"]


def test_matching_lines_are_kept_if_recent_or_undated() -> None:
    lines = [line(10, "old lost"), line(30, "new lost"), line(30, "new found"), line(0, "lost?")]
    kept = select_lines(lines, re.compile("lost"), 20)
    assert [each.text for each in kept] == ["new lost", "lost?"]


def test_a_line_cannot_steer_the_terminal() -> None:
    assert "\x1b" not in shown(line(0, "\x1b[2Jgone"), with_time=True, names=5)


def test_the_last_of_each_file_are_kept() -> None:
    lines = [line(n, str(n)) for n in range(5)] + [line(9, "x", "b2")]
    assert [each.text for each in last_of_each(lines, 2)] == ["3", "4", "x"]


EVENT = json.dumps(
    {"t_ns": 16, "event": "session_lost", "peer": "c1", "reason": "closed by peer", "session": 1}
)


def test_an_event_is_readable_on_a_terminal() -> None:
    found = shown(line(0, EVENT), with_time=False, names=5)
    assert found.endswith('| session lost peer=c1 reason="closed by peer" session=1')
    values = {"event": "a", "zero": 0, "no": False, "list": [], "text": "", "none": None}
    assert shown(line(0, json.dumps(values)), with_time=False, names=5).endswith(
        "| a zero=0 no=false list=[]"
    )
    for text in ("{torn", "[1]", '{"other": 1}', "plain"):
        assert shown(line(0, text), with_time=False, names=5).endswith(f"| {text}")
    hostile = json.dumps({"event": "a", "peer": "\x1b[2J"})
    assert "\x1b" not in shown(line(0, hostile), with_time=False, names=5)


def test_a_line_in_a_pipe_is_a_json_object() -> None:
    found = json.loads(json_line(line(7, EVENT)))
    assert found["event"]["peer"] == "c1"
    assert (found["wall_ns"], "text" in found) == (7, False)
    plain = json.loads(json_line(line(7, "plain")))
    assert (plain["text"], "event" in plain) == ("plain", False)
