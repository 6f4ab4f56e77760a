"""Requests and answers of a broker, message by message.

The tests cover overlapping requests, early answers and events that are not durable yet.

Paper: [GD02] §2.2, §3.1, §3.2.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from brokerd.model.client_messages import Connect, Publish, Subscribe
from brokerd.model.identity import SourceId
from brokerd.model.losses import LINEAGE_BITS
from brokerd.model.predicate_text import parse_predicate
from brokerd.model.publication import PublicationRun
from brokerd.protocols.gryphon.definition import LOG
from brokerd.protocols.gryphon.messages import EVERYWHERE, AckExpected, Events, Joined, Nack, Silent
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.pubend import unpack_logged
from brokerd.protocols.gryphon.stream import Stream
from brokerd.protocols.interface import (
    Append,
    Commit,
    DeadlineReached,
    Effect,
    LogEnds,
    MessageReceived,
    Persisted,
    RecordsRead,
    Send,
    SessionEstablished,
    Started,
)
from brokerd.protocols.registry import make_protocol
from brokerd.simulator.checks.growth import sizes_of
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.units import MILLISECOND_NS, SECOND_NS
from brokerd.wire.attributes import decode_attribute_table, encode_attributes
from tests.helpers.gryphon_stories import TWO_SUBENDS, Story, cells
from tests.helpers.stream_runs import STREAM, run_at

MUTANTS = bugs_of("gryphon")

P1, B1, S1, S2 = range(4)
BLOB = encode_attributes({"kind": "a"})
Message = TypeVar("Message")


class One:
    """A broker of p1-b1, b1-s1, b1-s2 with sessions to all neighbours, without filters.

    Args:
        log: the contents of its log; none for a first start.
        lineage: see Started.
    """

    def __init__(
        self, broker: int, log: Sequence[bytes] = (), lineage: int = 0, **parameters: Any
    ) -> None:
        chosen = GryphonParameters(**{"filters": False, **parameters})
        self.core = make_protocol(
            "gryphon", broker, cells(*TWO_SUBENDS), chosen, decode_attribute_table
        )
        self.now_ns = 0
        self.lineage = lineage
        self.said: list[Effect] = []
        ends = LogEnds(1, 1 + len(log))
        self.on(Started(1, bool(log), {}, {LOG: ends}, 100 * SECOND_NS, lineage))
        while any(isinstance(each, Append | Commit) for each in self.said):
            self.writes()
        if log:
            self.on(RecordsRead(LOG, 1, tuple(log)))
        for peer in (P1, S1, S2) if broker == B1 else (B1,):
            self.on(SessionEstablished(peer, 10 + peer, 1))
        self.said.clear()

    def receives_from(self, peer: int | str, message: Any) -> None:
        """Receive a message from a neighbour or client."""
        session = 10 + peer if isinstance(peer, int) else 1
        self.on(MessageReceived(peer, session, message))

    def waits(self, duration_ns: int) -> None:
        """Let time pass."""
        until_ns = self.now_ns + duration_ns
        while (due_ns := self.core.next_deadline()) is not None and due_ns <= until_ns:
            self.now_ns = max(self.now_ns, due_ns)
            self.on(DeadlineReached())
        self.now_ns = until_ns

    def writes(self, what: type[Append | Commit] | None = None) -> None:
        """Complete all pending writes, or those of a kind."""
        kind = what or (Append, Commit)
        for effect in [e for e in self.said if isinstance(e, kind)]:
            self.said.remove(effect)
            if effect.token is not None:
                self.on(Persisted(effect.token))

    def tells(self, peer: int, kind: type[Message]) -> list[Message]:
        """Return the messages of a kind to a neighbour since the last call."""
        told = [e.message for e in self.said if isinstance(e, Send) and e.peer == peer]
        self.said = [e for e in self.said if not (isinstance(e, Send) and e.peer == peer)]
        return [message for message in told if isinstance(message, kind)]

    def has_published(self) -> None:
        """Let a client publish one event."""
        self.on(SessionEstablished("p", 1, 1))
        self.receives_from("p", Connect(True, 1, 1, 0, ()))
        self.writes()
        self.said.clear()
        source = SourceId(P1, self.lineage << LINEAGE_BITS, 1)
        run = PublicationRun(source, range(1, 2), (BLOB,), b"\0", 1, (b"x",))
        self.receives_from("p", Publish(run))

    def has_joined(self) -> None:
        """Let all brokers confirm the join of the pubend, twice."""
        for number in (1, 2):
            self.writes(Commit)
            for host in (B1, S1, S2):
                self.receives_from(B1, Joined(STREAM, 1, number, host, 1))

    def has_subscriber(self) -> None:
        """Let a client subscribe to all events."""
        self.on(SessionEstablished("s", 1, 1))
        self.receives_from("s", Connect(False, 0, 1, 0, ()))
        self.writes()
        self.receives_from("s", Subscribe(1, parse_predicate("true")))
        self.writes()
        self.said.clear()

    def on(self, event: Any) -> None:
        self.said += self.core.handle(event, self.now_ns)


def told_of(start: int, end: int, *ticks: int, again: bool = False) -> Events:
    run = replace(run_at(ticks), attribute_table=(BLOB,))
    return Events(0, start, end, again, True, EVERYWHERE, run)


def test_only_new_ranges_of_overlapping_requests_are_forwarded() -> None:
    broker = One(B1)
    broker.receives_from(S1, Nack(STREAM, ((10, 20),)))
    broker.receives_from(S2, Nack(STREAM, ((15, 30),)))
    assert [m.ranges for m in broker.tells(P1, Nack)] == [((10, 20),), ((20, 30),)]


def asked_for_twice_in_one_question() -> None:
    one = One(B1)
    one.receives_from(S1, Nack(STREAM, ((12, 20), (15, 25), (13, 18), (30, 31))))
    (asked,) = one.tells(P1, Nack)
    assert asked.ranges == ((12, 20), (20, 25), (30, 31))


def test_a_request_with_overlapping_ranges_is_forwarded_without_the_overlap() -> None:
    asked_for_twice_in_one_question()
    with plant([MUTANTS["present-request-is-not-recorded"]]), pytest.raises(AssertionError):
        asked_for_twice_in_one_question()


def test_silence_and_events_are_sent_only_to_brokers_that_requested_them() -> None:
    """Broker s1 requests silence next to two events; s2 requests no tick."""
    broker = One(B1)
    broker.receives_from(S1, Nack(STREAM, ((4, 6),)))
    broker.receives_from(P1, told_of(1, 10, 3, 6, again=True))
    (silent,) = broker.tells(S1, Silent)
    assert silent.ranges == ((4, 6),)
    assert not broker.tells(S1, Events)
    assert not broker.tells(S2, Events | Silent)  # type: ignore[arg-type]


def late_first() -> list[Events]:
    """Return the messages to s2 about an event that b1 received first as an answer for s1."""
    broker = One(B1)
    broker.receives_from(S1, Nack(STREAM, ((1, 10),)))
    broker.receives_from(P1, told_of(1, 10, 3, 6, again=True))
    assert [[*m.run.sequences] for m in broker.tells(S1, Events)] == [[3, 6]]
    assert not broker.tells(S2, Events)
    broker.receives_from(P1, told_of(1, 10, 3, 6))
    return broker.tells(S2, Events)


def test_a_late_first_transmission_still_reaches_brokers_without_a_request() -> None:
    assert [[*m.run.sequences] for m in late_first()] == [[3, 6]]
    with plant([MUTANTS["answered-ticks-are-not-forwarded"]]):
        assert not late_first()


def asked_while_an_event_is_written(asked: tuple[int, int]) -> list[tuple[tuple[int, int], ...]]:
    """Return the silence that p1 announces before its event is on disk."""
    broker = One(P1, order="total", pubends=1)
    broker.has_published()
    broker.has_joined()
    tick = broker.core.pubends._last[0]  # type: ignore[attr-defined]
    broker.receives_from(B1, Nack(STREAM, ((tick + asked[0], tick + asked[1]),)))
    broker.writes(Commit)
    told = [m.ranges for m in broker.tells(B1, Silent)]
    assert all(end <= tick for ranges in told for _, end in ranges), "it is an event's"
    assert not broker.tells(B1, Events)
    broker.writes()
    (news,) = broker.tells(B1, Events)
    assert [*news.run.sequences] == [tick]
    return told


@pytest.mark.parametrize("asked", [(-10_000, 1), (-10_000, 5_000), (0, 5_000)])
def test_silence_ends_below_an_event_that_is_being_written(asked: tuple[int, int]) -> None:
    assert not asked_while_an_event_is_written(asked)
    if asked[1] > 1:
        with (
            plant([MUTANTS["silence-covers-pending-events"]]),
            pytest.raises(AssertionError, match="it is an event's"),
        ):
            asked_while_an_event_is_written(asked)


def asked_when_expected(**parameters: Any) -> list[tuple[tuple[int, int], ...]]:
    """Return the requests of s1 around an AckExpected for ticks that were partly requested."""
    broker = One(S1, nack_chunk_ns=SECOND_NS, **parameters)
    broker.has_subscriber()
    broker.receives_from(B1, told_of(1, 10, 3))
    broker.receives_from(B1, told_of(20, 30, 25))
    broker.waits(250 * MILLISECOND_NS)
    broker.receives_from(B1, AckExpected(STREAM, 40, EVERYWHERE))
    broker.waits(100 * MILLISECOND_NS)
    return [m.ranges for m in broker.tells(B1, Nack)]


def test_pending_requests_are_not_repeated_when_an_acknowledgement_is_expected() -> None:
    assert asked_when_expected() == [((10, 20),), ((30, 41),)]


def test_loss_markers_do_not_count_as_publications_of_clients() -> None:
    """A run at a broker that had accepted a loss was UNKNOWN: it counted what no client sent."""
    broker = One(P1, lineage=1_700_000_000)
    statistics = broker.core.statistics()
    assert (statistics["publications_received"], statistics["queue_publications"]) == (0, 4)
    broker.has_published()
    broker.writes()
    assert broker.core.statistics()["publications_received"] == 1


def asked_while_it_reads() -> list[Events]:
    """Return the answers of p1 to a neighbour that asked three times during the read of the log."""
    before = One(P1)
    before.has_published()
    (parts,) = [each for e in before.said if isinstance(e, Append) for each in e.records]
    record = b"".join(parts)
    chosen = GryphonParameters(filters=False)
    core = make_protocol("gryphon", P1, cells(*TWO_SUBENDS), chosen, decode_attribute_table)
    core.handle(Started(2, True, {}, {LOG: LogEnds(1, 2)}, 100 * SECOND_NS), 0)
    core.handle(SessionEstablished(B1, 11, 1), 0)
    _, tick, _ = unpack_logged(record)
    for start, end in ((1, tick + 1), (1, tick + 1), (tick - 5, tick + 1)):
        core.handle(MessageReceived(B1, 11, Nack(STREAM, ((start, end),))), 0)
    told = core.handle(RecordsRead(LOG, 1, (record,)), 0)
    return [e.message for e in told if isinstance(e, Send) and isinstance(e.message, Events)]


def test_repeated_requests_during_a_log_read_are_answered_once() -> None:
    assert len(asked_while_it_reads()) == 1
    with plant([MUTANTS["repeated-requests-wait-for-the-log"]]):
        assert len(asked_while_it_reads()) == 3


def kept_of_questions() -> int:
    """Return the number of repeated requests that a stream keeps after all are answered."""
    stream = Stream(STREAM, P1, (S1,), GryphonParameters())
    stream.request([(1, 2)], 0, 450)
    for start in range(10, 40, 2):
        stream.request([(start, start + 1)], 100, 550)
    stream.on_answer(10, 40)
    stream.forget_requested(450)  # the answer of the first was lost
    return sizes_of(stream)["Stream._requested_until"]


def test_no_answer_is_kept_after_the_last_request_is_dropped() -> None:
    assert kept_of_questions() == 0
    with plant([MUTANTS["answered-requests-are-retained"]]):
        assert kept_of_questions() == 15


def pieces_of_a_gap() -> list[tuple[tuple[int, int], ...]]:
    """Return the ranges of all messages with which s1 requests a gap of 2.3 s."""
    one = One(S1)
    one.has_subscriber()
    one.receives_from(B1, told_of(1, 10, 3))
    one.receives_from(B1, told_of(2_300_010, 2_300_020, 2_300_015))
    one.waits(250 * MILLISECOND_NS)
    return [m.ranges for m in one.tells(B1, Nack)]


def delayed_by_one_lost_message() -> list[int]:
    """Return the number of events that s1 lacks after a stall of 2.4 s, 100 ms after its requests.

    One request is lost.
    """
    story = Story()
    subscription = story.cluster.subscribe("s1")
    story.cluster.run_until_quiet()
    story.publish(1)
    story.lose_some(1.0)
    sent = story.publish(60)
    story.lose_some(0)
    story.lose("s1", "b1", Nack)
    sent += story.publish(1, pause_s=0.001)
    story.wait_for(lambda: bool(story.from_to("s1", "b1", Nack)))
    story.cluster.run_for(0.1)
    knowledge = story.cluster.broker("s1").broker.core.streams.get(STREAM).knowledge
    lacking = [sum(end - start for start, end in knowledge.known.gaps(1, knowledge.highest))]
    story.cluster.run_for(2)
    assert subscription.received[-61:] == sent
    return lacking


def test_each_piece_of_a_gap_is_a_message_of_its_own() -> None:
    """[GD02] section 4.2: the effect of a lost nack message is therefore small."""
    asked = pieces_of_a_gap()
    assert len(asked) == 5
    assert [len(ranges) for ranges in asked] == [1] * 5
    assert (asked[0][0][0], asked[-1][0][1]) == (10, 2_300_010)
    with plant([MUTANTS["one-message-for-a-whole-gap"]]):
        assert len(pieces_of_a_gap()) == 1


def test_a_lost_request_delays_the_answer_to_its_own_piece_only() -> None:
    (lacking,) = delayed_by_one_lost_message()
    assert 0 < lacking <= 500_001
    with plant([MUTANTS["one-message-for-a-whole-gap"]]):
        (lacking,) = delayed_by_one_lost_message()
        assert lacking > 2_000_000
