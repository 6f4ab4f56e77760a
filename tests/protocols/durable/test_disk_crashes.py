"""A crash at any moment of the commit cycle preserves all state that others rely on.

The log of matches and the rows with its extent are two stores. All writes of one broker in a story
also go to the real stores, in memory. The next incarnation starts on every state that a crash may
leave of both, and is compared with all promises that the broker made.

Paper: [DS03] §4.1, §4.2.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest

from brokerd.errors import StorageCorrupt
from brokerd.model.client_messages import Subscribed, Unsubscribe, Unsubscribed
from brokerd.model.identity import StreamId
from brokerd.protocols.durable.checks.disks import DurableChecks
from brokerd.protocols.durable.consolidated_stream import HostedStream
from brokerd.protocols.durable.core import Durable
from brokerd.protocols.durable.definition import key_of
from brokerd.protocols.durable.filtering_subsystem import NO_RECORD, FilterLog
from brokerd.protocols.durable.messages import Released
from brokerd.protocols.durable.state import ACKNOWLEDGED, DELIVERED
from brokerd.protocols.gryphon.messages import Done, Events
from brokerd.protocols.interface import LogEnds, MessageReceived, Read, RecordsRead, Send, Started
from brokerd.protocols.parts.clients.own_subscriptions import SUBSCRIPTIONS
from brokerd.protocols.registry import make_protocol
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.storage import log_volume
from brokerd.storage.log_groups import EntryKind, LogEntry
from brokerd.storage.log_volume import LogVolume
from brokerd.units import MILLISECOND_NS, SECOND_NS
from brokerd.wire.attributes import decode_attribute_table
from tests.helpers import recorded_sqlite as recorder
from tests.helpers.durable_stories import DurableStory
from tests.helpers.memory_storage import MemoryFiles
from tests.helpers.two_stores import (
    FOLDER,
    Logs,
    Rows,
    Store,
    Taken,
    crashed_logs,
    crashed_rows,
    crashes,
    list_groups,
)

MUTANTS = bugs_of("durable")

SEED = 23
OF_A_MOMENT = 48
PAUSE_S = 0.0011
KINDS = "abba" * 6
LEAST_STATES = 100_000


@dataclass
class Said:
    """Promises that a broker has made to others.

    Attributes:
        released: per stream, the tick up to which no request may be made here again.
        done: per stream, the tick up to which all events were delivered.
        started: open subscriptions whose start was confirmed to the clients.
        ended: subscriptions whose end was confirmed to the clients.
    """

    released: dict[StreamId, int] = field(default_factory=dict)
    done: dict[StreamId, int] = field(default_factory=dict)
    started: frozenset[str] = frozenset()
    ended: frozenset[str] = frozenset()

    def and_then(self, step: Taken) -> "Said":
        """Return the promises after a further step."""
        said = Said(dict(self.released), dict(self.done), self.started, self.ended)
        if isinstance(step.event, MessageReceived) and isinstance(step.event.message, Unsubscribe):
            ending = f"{step.event.peer}/{step.event.message.number}"
            said.started -= {ending}
        for effect in step.effects:
            if not isinstance(effect, Send):
                continue
            message = effect.message
            if isinstance(message, Released | Done):
                told = said.released if isinstance(message, Released) else said.done
                for stream, through in message.through:
                    told[stream] = max(through, told.get(stream, 0))
            elif isinstance(message, Subscribed) and message.state == "started":
                said.started |= {f"{effect.peer}/{message.number}"}
            elif isinstance(message, Unsubscribed):
                said.ended |= {f"{effect.peer}/{message.number}"}
        return said


class Watched(DurableStory):
    """A story that records the steps of one broker and leaves errors to other checks."""

    strict = False

    def __init__(self, *bundles: str, **parameters: Any) -> None:
        self.steps: list[Taken] = []
        super().__init__(*bundles, **parameters)

    def _watch(self, broker: Any, event: Any, effects: Any) -> None:
        super()._watch(broker, event, effects)
        if broker.name == "s1":
            now_ns = self.cluster.schedule.now_ns
            self.steps.append(Taken(now_ns, event, tuple(effects)))

    def events(self) -> Mapping[StreamId, Mapping[int, bytes]]:
        """Return all events that the broker received: stream → tick → attributes."""
        found: dict[StreamId, dict[int, bytes]] = {}
        for step in self.steps:
            message = step.event.message if isinstance(step.event, MessageReceived) else None
            if isinstance(message, Events):
                run = message.run
                ticks = {tick: blob for tick, blob, _ in run.publications()}
                found.setdefault(StreamId(*run.source), {}).update(ticks)
        return found


def the_story(kinds: str) -> Watched:
    """Return a story with two live subscribers, an absent, a new and an ended subscription."""
    soon_ns = MILLISECOND_NS
    story = Watched("p1-s1", commit_interval_ns=6 * soon_ns, ack_interval_ns=soon_ns)
    story.subscriber("s1", "kind = 'b'")
    away, over = story.subscriber(), story.subscriber()
    publish(story, kinds)
    link = story.away(away)
    publish(story, "abba")
    story.cluster.subscribe("s1", "kind = 'b'")
    publish(story, "abba")
    over.client.unsubscribe(over.number)
    publish(story, "abba")
    story.kill("s1", kept=1_000)
    story.cluster.broker("s1").start()
    publish(story, "abba")
    link.heal()
    story.cluster.run_for(0.5)
    publish(story, kinds)
    story.cluster.run_for(1)
    return story


def publish(story: DurableStory, kinds: str) -> None:
    for kind in kinds:
        story.cluster.publish("p1", kind=kind)
        story.cluster.run_for(PAUSE_S)


@pytest.fixture
def folder() -> Iterator[Path]:
    if not recorder.is_possible():
        pytest.skip("the SQLite library of this Python shows nobody its functions")
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


@dataclass
class Crashed:
    """The states that were checked.

    Attributes:
        states: pairs of log state and row state that a crash may leave, if nothing is lost.
        starts: distinct pairs that a broker was started on, if nothing is lost.
        lost: the promised state that is missing in the first faulty pair.
    """

    states: int = 0
    starts: int = 0
    lost: str = ""
    logs: Store = field(default_factory=Store)
    rows: Store = field(default_factory=Store)


def crash_everywhere(story: Watched, folder: Path, of_a_moment: int) -> Crashed:
    """Return the states that a crash at any step may leave, up to the first loss."""
    log_groups, row_groups = list_groups(story.steps)
    names = tuple(next(each.event.logs for each in story.steps if isinstance(each.event, Started)))
    crashed = Crashed(
        logs=crashed_logs(log_groups, names),
        rows=crashed_rows(row_groups, folder, of_a_moment, Random(SEED)),
    )
    said = [Said()]
    for step in story.steps:
        said.append(said[-1].and_then(step))
    events, started, pairs = story.events(), {}, set[int]()
    for step, logs, rows in crashes(len(story.steps), crashed.logs, crashed.rows):
        pairs.update(log * crashed.rows.states + row for log, row in product(logs, rows))
        for log in dict.fromkeys(logs.values()):
            for row in dict.fromkeys(rows.values()):
                content = crashed.rows.found[row]
                if (log, row) not in started:
                    started[log, row] = start(story, crashed.logs.found[log], content)
                core = started[log, row]
                if isinstance(core, StorageCorrupt):
                    problem = str(core)
                else:
                    problem = lost(core, content, said[step + 1], events)
                if problem:
                    crashed.lost = f"behind step {step}: {problem}"
                    return crashed
    crashed.states, crashed.starts = len(pairs), len(started)
    return crashed


def start(story: DurableStory, logs: Logs, rows: Rows) -> Durable | StorageCorrupt:
    """Start a broker on logs and rows without neighbours, and return the core or the error."""
    cluster = story.cluster
    core = make_protocol(
        "durable",
        cluster.topology.number_of("s1"),
        cluster.topology,
        cluster.parameters,
        decode_attribute_table,
    )
    ends = {name: LogEnds(first, first + len(kept)) for name, (first, kept) in logs.items()}
    now_ns = cluster.schedule.now_ns
    try:
        effects = core.handle(Started(9, True, rows, ends, now_ns), now_ns)
    except StorageCorrupt as error:
        return error
    reads = [each for each in effects if isinstance(each, Read)]
    while reads:
        read = reads.pop(0)
        first, kept = logs[read.log]
        page = RecordsRead(read.log, read.first, kept[read.first - first : read.end - first])
        reads += [each for each in core.handle(page, now_ns) if isinstance(each, Read)]
    assert isinstance(core, Durable), f"{core}"
    assert not core.gryphon.is_reading, "it has not read its logs"
    return core


def lost(core: Durable, rows: Rows, said: Said, events: Mapping[StreamId, Any]) -> str:
    """Return a description of the first broken promise; empty if there is none."""
    subscriptions = rows.get(SUBSCRIPTIONS, {})
    if said.started - subscriptions.keys():
        return f"started, and not there: {said.started - subscriptions.keys()}"
    if said.ended & subscriptions.keys():
        return f"ended, and there: {said.ended & subscriptions.keys()}"
    for hosted in core.hosted.values():
        delivered = rows.get(DELIVERED, {}).get(key_of(hosted.identity), 0)
        if not hosted.log.last_tick <= delivered == hosted.delivered == hosted.position:
            return f"{hosted.identity}: delivered {delivered} on disk, {hosted.position} here"
        ticks = events.get(hosted.identity, {})
        for name, (identity, *_) in subscriptions.items():
            key = f"{identity}/{key_of(hosted.identity)}"
            had = rows.get(ACKNOWLEDGED, {}).get(key, 0)
            problem = lost_of_one(hosted, identity, had, wanted(rows, name, ticks), said)
            if problem:
                return f"{hosted.identity}, {name}: {problem}"
    return ""


def lost_of_one(hosted: HostedStream, identity: int, had: int, ticks: list[int], said: Said) -> str:
    """Return the first broken promise for a subscription that has the events up to `had`."""
    delivered = hosted.delivered
    found = chain(hosted, identity)
    if found != sorted(found):
        return f"records go {found}"
    expected = [tick for tick in ticks if had < tick <= delivered]
    if [tick for tick in found if tick > had] != expected:
        return f"records of {found}, not of {expected}, behind {had} up to {delivered}"
    released, done = said.released.get(hosted.identity, 0), said.done.get(hosted.identity, 0)
    if released > min(had, delivered):
        return f"{released} was released; had {had} of {delivered}"
    open_ticks = [tick for tick in ticks if max(had, delivered) < tick <= done]
    return f"done up to {done}, without {open_ticks}" if open_ticks else ""


def chain(hosted: HostedStream, identity: int) -> list[int]:
    """Return the ticks of a subscription, read along the chain of its records."""
    log, found = hosted.log, []
    index = log.newest(identity)
    while log.has(index):
        record = log.record(index)
        assert record is not None, f"record {index} is not in memory"
        found.append(record.tick)
        before = record.before(identity)
        assert before < index or before == NO_RECORD, f"record {index} names {before}"
        index = before
    return found[::-1]


def wanted(rows: Rows, name: str, ticks: Mapping[int, bytes]) -> list[int]:
    """Return the ticks of events that match a subscription, from the story's own record."""
    only_b = "b" in str(rows[SUBSCRIPTIONS][name][1])
    return sorted(t for t, blob in ticks.items() if not only_b or blob == DurableStory.blob("b"))


def test_no_crash_of_the_commit_cycle_loses_an_acknowledged_position(
    folder: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    monkeypatch.setattr(log_volume.os, "urandom", Random(SEED).randbytes)
    crashed = crash_everywhere(the_story(KINDS), folder, OF_A_MOMENT)
    record_property(
        "measured",
        f"crash states of matches and rows together: {crashed.states:,} of {crashed.logs.states:,}"
        f" states of logs and {crashed.rows.states:,} of SQLite, {crashed.starts:,} different"
        " starts, 0 acknowledged lost",
    )
    assert not crashed.lost
    assert crashed.states >= LEAST_STATES
    assert crashed.logs.refused <= crashed.logs.states // 100


@pytest.mark.parametrize(
    "name, kinds, problem",
    [
        ("rows-before-matches", "ab", "ends before record"),
        ("announced-before-rows", "ab", "done up to"),
        ("released-before-written", KINDS, "was released"),
        ("not-truncated", "ab", "delivered"),
    ],
)
def test_a_wrong_order_is_seen(
    name: str, kinds: str, problem: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison of disk contents finds the wrong order without the simulator's checks."""
    monkeypatch.setattr(DurableChecks, "step", lambda *_: ())
    monkeypatch.setattr(DurableChecks, "look_into", lambda *_: None)
    with plant([MUTANTS[name]]):
        crashed = crash_everywhere(the_story(kinds), folder, 1)
    assert problem in crashed.lost


def test_a_missing_match_log_is_refused_and_not_read_as_silence() -> None:
    story = the_story("ab")
    broker = story.cluster.broker("s1").broker
    logs = dict.fromkeys(broker.disk.ends(), (1, ()))
    refused = start(story, logs, broker.disk.recovered())
    assert isinstance(refused, StorageCorrupt)
    assert "log matches.0.0 ends before record 1; it was written up to" in str(refused)


@pytest.mark.parametrize("at", [0.3, 0.6, 0.999])
@pytest.mark.parametrize("is_cut", [True, False])
def test_a_log_of_matches_that_is_cut_or_overwritten_is_refused(at: float, is_cut: bool) -> None:
    """A torn end can only be undurable, so a cut or overwritten durable part is an error."""
    files = MemoryFiles()
    volume = LogVolume(FOLDER, files=files)
    volume.begin(["matches.0.0"], recovering=True)
    log = FilterLog("matches.0.0")
    for tick in range(1, 40):
        (append,) = log.write([tick], [1, 2])
        (record,) = append.records
        volume.write([LogEntry(EntryKind.APPENDED, append.log, tick, record)])
    volume.close()
    sound = files.read_all()
    path = str(FOLDER / "00000001.log")
    place = int(at * len(sound[path]))
    damaged = sound[path][:place]
    if not is_cut:
        damaged = (damaged + bytes(24) + sound[path][place + 24 :])[: len(sound[path])]
    volume = LogVolume(FOLDER, files=MemoryFiles({**sound, path: damaged}))
    with pytest.raises(StorageCorrupt, match=r"00000001\.log: damaged at byte"):
        volume.begin(["matches.0.0"], recovering=True)


def test_while_the_disk_is_full_nothing_is_released_and_nothing_is_lost() -> None:
    """Matches that do not fit are written later, and no broker is notified of them before."""
    story = Watched("p1-s1", commit_interval_ns=6 * MILLISECOND_NS)
    subscription = story.subscriber()
    story.publish(2)
    disk = story.cluster.broker("s1").broker.disk
    disk._delay_ns = 5 * SECOND_NS
    sent = story.publish(10)
    story.cluster.run_for(2)
    ticks = sorted(story.events()[StreamId(0, 0, 0)])
    assert released(story) < ticks[2]
    assert story.logged("p1") == 10
    disk._delay_ns = MILLISECOND_NS
    story.cluster.run_for(20)
    assert released(story) >= ticks[-1]
    assert story.kept("p1") == 0
    assert subscription.received[-10:] == sent


def released(story: DurableStory) -> int:
    told = story.from_to("s1", "p1", Released)
    return max(dict(each.through)[StreamId(0, 0, 0)] for each in told)
