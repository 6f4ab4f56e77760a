"""State that a pubend's broker leaves in a crash, and faulty clocks, disks and brokers.

Paper: [GD02] §2.2 (only logged events are published), §3.
"""

import struct
from pathlib import Path

import pytest

from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import PublishAcknowledged
from brokerd.model.identity import SourceId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.gryphon import pubend
from brokerd.protocols.gryphon.definition import LOG
from brokerd.protocols.gryphon.messages import Events
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.pubend import unpack_logged
from brokerd.protocols.gryphon.state import PUBLISHED, RELEASED, RESERVED
from brokerd.protocols.interface import Append, Commit, LogEnds, RecordsRead, Started
from brokerd.protocols.parts.records import pack_run
from brokerd.protocols.registry import make_protocol
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.storage.files import MARK_BYTES
from brokerd.storage.log_groups import EntryKind, LogEntry
from brokerd.storage.log_volume import MARK_NAME, LogVolume
from brokerd.units import SECOND_NS
from brokerd.wire.attributes import decode_attribute_table
from tests.helpers.gryphon_stories import TWO_SUBENDS, PaperStory, Story, cells
from tests.protocols.gryphon.test_questions import BLOB, P1, One

MUTANTS = bugs_of("gryphon")


class ClockAt:
    """A clock with a reading, in seconds, that a story sets for the start of a broker."""

    def __init__(self, seconds: int) -> None:
        self.seconds = seconds

    def read_at_start(self, broker: int, now_ns: int) -> int:
        return self.seconds * SECOND_NS


def first_ticks(story: Story, sender: str = "p1", receiver: str = "b1") -> list[int]:
    """Return the ticks of new events that a broker received, in order."""
    told = [m for m in story.from_to(sender, receiver, Events) if not m.again]
    return [tick for m in told for tick in m.run.sequences]


def restarted_with_a_clock(
    back_s: int, pause_s: float = 1, **parameters: object
) -> tuple[list[int], int]:
    """Return the ticks of three events before and after a restart with a slower clock.

    The second value is the tick up to which silence may have been announced before. In total order
    p1 announces silence when an event of s1 waits for it.

    Args:
        back_s: the difference of the clock.
        pause_s: the time before the restart; after a second the log is empty.
    """
    story = Story(pubends=1, **parameters)
    subscriber = story.cluster.subscribe("s1")
    story.cluster.run_until_quiet()
    broker = story.cluster.broker("p1")
    clock = ClockAt(1_000_000)
    broker.broker._wall_clocks = clock  # type: ignore[assignment]
    broker.restart()
    story.cluster.run_for(3)
    sent = story.publish(3, pause_s=0.01)
    other = story.publish(1, at="s1", pause_s=0.01)
    story.cluster.run_for(pause_s)
    reserved = max(broker.broker.on_disk().get(RESERVED, {}).values(), default=0)
    clock.seconds += 4 - back_s
    broker.restart()
    sent += story.publish(3)
    story.settle()
    assert [each for each in subscriber.received if each not in other] == sent
    return first_ticks(story), reserved


@pytest.mark.parametrize("back_s", [5, 3_600])
@pytest.mark.parametrize("order", ["publisher", "total"])
def test_ticks_increase_although_the_clock_is_set_back(order: str, back_s: int) -> None:
    ticks, reserved = restarted_with_a_clock(back_s, order=order)
    assert len(ticks) == 6
    assert ticks == sorted(set(ticks))
    if order == "total":
        assert ticks[2] < reserved < ticks[3]
    with (
        plant([MUTANTS["ticks-follow-the-clock-alone"]]),
        pytest.raises((AssertionError, InvariantViolated)),
    ):
        restarted_with_a_clock(back_s, order=order)


def test_ticks_increase_beyond_those_in_the_log_after_a_restart() -> None:
    ticks, _ = restarted_with_a_clock(3_600, pause_s=0.01)
    assert ticks == sorted(set(ticks))
    with (
        plant([MUTANTS["M09-tick-used-again"]]),
        pytest.raises((AssertionError, InvariantViolated)),
    ):
        restarted_with_a_clock(3_600, pause_s=0.01)


def last_event_is_asked_after() -> bool:
    """Return True if p1 requests acknowledgement with a clock an hour behind that of s1.

    In total order its ticks continue after the silence that an event of s1 caused.
    """
    story = Story("p1-b1", "b1-s1", pubends=1, order="total")
    for name, seconds in (("p1", 1_000_000), ("s1", 1_003_600)):
        broker = story.cluster.broker(name)
        broker.broker._wall_clocks = ClockAt(seconds)  # type: ignore[assignment]
        broker.restart()
    subscriber = story.cluster.subscribe("s1")
    story.cluster.run_until_quiet()
    sent = story.publish(1, at="s1", pause_s=1)
    story.lose("p1", "b1", Events)
    sent += story.publish(1, pause_s=30)
    return subscriber.received == sent


def test_the_clock_of_a_pubend_resumes_from_its_last_tick() -> None:
    assert last_event_is_asked_after()
    with plant([MUTANTS["clock-precedes-assigned-ticks"]]):
        assert not last_event_is_asked_after()


@pytest.mark.parametrize("kept", [0, 1])
def test_a_restart_publishes_logged_events_and_discards_unlogged_ticks(kept: int) -> None:
    """The publisher, without an acknowledgement, sends the event again; it arrives once."""
    story = Story(pubends=1)
    subscriber = story.cluster.subscribe("s1")
    story.cluster.run_until_quiet()
    sent = story.publish(2)
    broker = story.cluster.broker("p1").broker
    sent.append(story.cluster.publish("p1", kind="a"))
    before = len(story.loggers)
    story.wait_for(lambda: len(story.loggers) > before)
    lost_tick = broker.core.pubends._last[0]  # type: ignore[attr-defined]
    assert not [m for m in story.from_to("p1", "b1", Events) if m.run.last == lost_tick]
    broker.kill(kept)
    assert broker.disk.ends()[LOG].next == 3 + kept
    story.quiet_since()
    broker.start()
    sent += story.publish(1, pause_s=1)
    story.settle()
    assert subscriber.received == sent
    told = [tick for m in story.from_to("b1", "s1", Events) for tick in m.run.sequences]
    assert (lost_tick in told) == bool(kept)
    assert len(set(told)) == 2
    (stream,) = (s for s in broker.core.streams if s.identity.broker == 0)  # type: ignore[attr-defined]
    assert lost_tick in stream.knowledge.known


def published_again_after_its_ack_was_lost(pause_s: float) -> tuple[int, int]:
    """Return the number of repeated log records and of acknowledgements of a publication.

    Args:
        pause_s: the time until the broker dies; after a second the event is no longer in the log.
    """
    story = Story(pubends=1, filters=False)
    story.cluster.subscribe("s1")
    story.cluster.run_until_quiet()
    story.publish(2)
    link = story.cluster.link("p-p1", "p1").absorb("in")
    story.publish(1, pause_s=pause_s)
    story.cluster.broker("p1").kill()
    link.cut().heal()
    story.quiet_since()
    story.cluster.broker("p1").start()
    story.settle()
    told = story.from_to("p1", "p-p1", PublishAcknowledged)
    return len(story.loggers) - 3, len([m for m in told if m.last == 3])


@pytest.mark.parametrize(
    "pause_s, bug", [(0.05, "published-not-recovered"), (1, "chopped-before-written")]
)
def test_a_republished_event_is_acknowledged_again_and_logged_once(
    pause_s: float, bug: str
) -> None:
    appended, told = published_again_after_its_ack_was_lost(pause_s)
    assert (appended, told > 0) == (0, True)
    with plant([MUTANTS[bug]]), pytest.raises((InvariantViolated, RemoteProtocolError)):
        published_again_after_its_ack_was_lost(pause_s)


def record_of(broker: One) -> bytes:
    """Return the log record of a broker's only publication."""
    broker.has_published()
    (append,) = (effect for effect in broker.said if isinstance(effect, Append))
    return b"".join(map(bytes, append.records[0]))


@pytest.mark.parametrize("torn_bytes", [1, 20, 60])
def test_a_record_that_is_half_on_disk_never_was(tmp_path: Path, torn_bytes: int) -> None:
    """In the real log the earlier record remains, and its tick is assigned to the next event."""
    record = record_of(One(P1, pubends=1))
    volume = LogVolume(tmp_path / "logs")
    volume.begin([LOG], recovering=True)
    sizes = []
    for index in (1, 2):
        volume.write([LogEntry(EntryKind.APPENDED, LOG, index, [record])])
        (file,) = (tmp_path / "logs").glob("*.log")
        sizes.append(file.stat().st_size)
    volume.close()
    (tmp_path / "logs" / MARK_NAME).write_bytes(bytes(MARK_BYTES))  # the mark stayed behind
    with file.open("r+b") as end:
        end.truncate(sizes[1] - torn_bytes)
    volume = LogVolume(tmp_path / "logs")
    ends = LogEnds(*volume.begin([LOG], recovering=True)[LOG])
    assert ends == LogEnds(1, 2)
    again = One(P1, volume.read(LOG, 1, 2, 1 << 20), pubends=1)
    volume.close()
    _, tick, _ = unpack_logged(record)
    stream = next(iter(again.core.streams))  # type: ignore[attr-defined]
    assert [*stream.knowledge.events.ticks(0, tick + 100)] == [tick]
    assert stream.knowledge.highest == tick


def full_disk(*, dies: bool) -> Story:
    """Fill a pubend's disk for a while; if `dies`, crash the broker meanwhile."""
    story = Story(pubends=1)
    subscriber = story.cluster.subscribe("s1")
    story.cluster.run_until_quiet()
    sent = story.publish(2)
    broker = story.cluster.broker("p1")
    lane = broker.broker.disk.log_lane
    lane.hold()
    story.quiet_since()
    sent += story.publish(3)
    story.cluster.run_for(30)
    assert not story.from_to("p1", "p-p1", PublishAcknowledged), "nothing is said that is not so"
    assert not story.from_to("p1", "b1", Events)
    assert len(subscriber.received) == 2
    if dies:
        broker.broker.kill(0)
        broker.start()
    else:
        lane.release()
    sent += story.publish(2)
    story.settle()
    assert subscriber.received == sent
    return story


@pytest.mark.parametrize("dies", [False, True])
def test_a_full_disk_holds_publications_back_and_loses_none(dies: bool) -> None:
    full_disk(dies=dies)
    with (
        plant([MUTANTS["M08-seen-before-durable"]]),
        pytest.raises((AssertionError, InvariantViolated)),
    ):
        full_disk(dies=dies)


def test_a_broker_of_a_cell_that_restarts_all_the_time_leaves_all_to_the_other_one() -> None:
    """A restart every 300 ms barely leaves time for a session, and no stale requests remain."""
    story = PaperStory()
    broker = story.cluster.broker("b1")
    for _ in range(20):
        broker.kill()
        story.rounds(3, pause_s=0.05)
        broker.start()
        story.rounds(3, pause_s=0.05)
    story.check()
    for each in story.cluster.brokers:
        for stream in each.core.streams:  # type: ignore[attr-defined]
            assert not stream.curious, f"{each.name} thinks that somebody still asks"
            assert len(stream.knowledge.known) == 1, f"{each.name} lacks something"


@pytest.mark.parametrize("order, kept", [("publisher", 0), ("total", 240)])
def test_brokers_keep_the_messages_for_a_pubend_that_is_down_for_an_hour(order, kept) -> None:
    """No message is kept in publisher order; in total order the other publishers' events are."""
    story = Story("p1-b1", "p2-b1", "b1-s1", "b1-s2", order=order)
    subscribers = [story.cluster.subscribe(name) for name in ("s1", "s2")]
    story.cluster.run_until_quiet()
    sent = story.publish(2, at="p1") + story.publish(2, at="p2")
    story.cluster.run_for(5)
    story.cluster.broker("p2").kill()
    most = 0
    for _ in range(60):
        sent += story.publish(4, pause_s=15, at="p1")
        most = max(most, *(each.core.statistics()["queue_publications"] for each in story.alive()))
    assert most == kept
    story.cluster.broker("p2").start()
    story.settle(30)
    assert [each.received for each in subscribers] == [sent, sent]


def rows_after_a_crash_before_a_chop(released: int) -> dict[tuple[str, str], int]:
    """Return the rows that a broker writes with a log of ticks 1..6 that is not truncated yet.

    Args:
        released: the number of events that the rows of the earlier incarnation released.
    """
    source = SourceId(P1, 0, 1)
    runs = [
        PublicationRun(source, range(n, n + 1), (BLOB,), b"\0", 1, (b"x",)) for n in range(1, 7)
    ]
    records = [struct.pack(">IQ", 0, run.last) + b"".join(pack_run(run)) for run in runs]
    parameters = GryphonParameters(filters=False, pubends=1)
    core = make_protocol("gryphon", P1, cells(*TWO_SUBENDS), parameters, decode_attribute_table)
    rows = {PUBLISHED: {"0.1": released}, RELEASED: {"0": released}}
    ends = {LOG: LogEnds(1, 7)}
    effects = core.handle(Started(2, True, rows, ends, 100 * SECOND_NS), 0)
    effects += core.handle(RecordsRead(LOG, 1, tuple(records)), 0)
    changes = [each for effect in effects if isinstance(effect, Commit) for each in effect.changes]
    return {
        (each.table, each.key): each.value
        for each in changes
        if each.table in (PUBLISHED, RELEASED)
    }


@pytest.mark.parametrize("released", range(1, 7))
@pytest.mark.parametrize("logged", [0, 1, 3])
def test_rows_of_released_events_never_decrease_after_a_crash_before_the_chop(
    monkeypatch: pytest.MonkeyPatch, released: int, logged: int
) -> None:
    """A long list of records shares entries, also across the released tick."""
    monkeypatch.setattr(pubend, "_LOGGED_RECORDS", logged)
    assert rows_after_a_crash_before_a_chop(released) == {
        (PUBLISHED, "0.1"): released,
        (RELEASED, "0"): released,
    }
