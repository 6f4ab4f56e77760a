"""Invalid messages of peers, and messages that arrive while a broker still reads its log."""

from dataclasses import replace
from typing import Any

import pytest

from brokerd.errors import ConfigError, RemoteProtocolError, StorageCorrupt
from brokerd.model.client_messages import Connect, Connected, Publish, Subscribe, Subscribed
from brokerd.model.identity import SourceId, StreamId
from brokerd.model.predicate_text import parse_predicate
from brokerd.model.publication import PublicationRun
from brokerd.protocols.gryphon.definition import LOG
from brokerd.protocols.gryphon.messages import (
    EVERYWHERE,
    AckExpected,
    Beginning,
    Beginnings,
    Done,
    Doubt,
    Events,
    FilterChange,
    FilterSet,
    FilterVersion,
    FilterVersions,
    Join,
    Joined,
    LinkStatus,
    Nack,
    Named,
    Silent,
    WindowProbe,
    WindowUpdate,
)
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.interface import (
    Append,
    CloseSession,
    Commit,
    DeliveryProtocol,
    Effect,
    LogEnds,
    MessageReceived,
    Persisted,
    RecordsRead,
    Send,
    SessionEstablished,
    SessionLost,
    Started,
)
from brokerd.protocols.registry import make_protocol
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.wire.attributes import decode_attribute_table, encode_attributes
from tests.helpers.gryphon_stories import cells, paper_cells
from tests.helpers.stream_runs import STREAM, run_at

MUTANTS = bugs_of("gryphon")

FAR = (1 << 63) - 1
CONNECT = Connect(True, 1, 1, 0, ())
BLOB = encode_attributes({"kind": "a"})


def core_of(broker: int, ends: LogEnds | None = None, **parameters_: Any) -> DeliveryProtocol:
    """Return a started core on the path of three brokers."""
    parameters = GryphonParameters(**{"filters": False, **parameters_})
    core = make_protocol(
        "gryphon", broker, cells("p1-b1", "b1-s1"), parameters, decode_attribute_table
    )
    core.handle(Started(1, False, {}, {LOG: ends or LogEnds()}), 0)
    return core


def relay() -> DeliveryProtocol:
    """Return the middle broker with both sessions and ticks up to 9 of the stream."""
    core = core_of(1)
    for peer in (0, 2):
        core.handle(SessionEstablished(peer, 10 + peer, 1), 0)
    core.handle(MessageReceived(0, 10, Events(0, 1, 10, False, True, EVERYWHERE, events(3, 6))), 0)
    return core


def events(*ticks: int) -> PublicationRun:
    return replace(run_at(ticks), attribute_table=(BLOB,))


@pytest.mark.parametrize(
    "peer, message, why",
    [
        (0, Events(0, 12, 20, False, True, EVERYWHERE, events(11)), r"\[12, 20\) around"),
        (
            0,
            Events(0, 12, 20, False, True, EVERYWHERE, replace(events(13), origins=())),
            r"\[12, 20\) around",
        ),
        (0, Events(0, 12, 20, False, True, EVERYWHERE, run_at([13])), "malformed attributes"),
        (
            2,
            Events(0, 12, 20, False, True, EVERYWHERE, events(13)),
            "does not arrive from this peer",
        ),
        (2, AckExpected(STREAM, 4, EVERYWHERE), "does not arrive from this peer"),
        (0, Nack(STREAM, ((12, 20),)), "does not go there"),
        (0, Done(0, ((STREAM, 4),)), "does not go there"),
        (0, Nack(StreamId(1, 0, 0), ((12, 20),)), "which ends at 0"),
        (0, Done(0, ((StreamId(1, 0, 0), 7),)), "which has fewer ticks"),
        (0, Events(0, 12, 20, False, True, 2, events(13)), "is for cell 2"),
        (0, AckExpected(STREAM, 4, 2), "is for cell 2"),
        (0, Done(2, ((STREAM, 4),)), "acknowledges for cell 2"),
        (0, LinkStatus((2, 3), ()), "cells of 3"),
        (2, Nack(STREAM, ()), r"ranges \(\)"),
        (2, Nack(STREAM, ((12, 12),)), r"ranges \(\(12, 12\),\)"),
        (0, AckExpected(StreamId(7, 0, 0), 4, EVERYWHERE), "no pubend has the stream"),
        (0, AckExpected(StreamId(0, 4, 0), 4, EVERYWHERE), "no pubend has the stream"),
        (0, AckExpected(StreamId(0, 0, 1), 4, EVERYWHERE), "no pubend has the stream"),
        (0, Events(0, 12, FAR + 1, False, True, EVERYWHERE, events(13)), r"\[12, .*\) around"),
        (0, Events(FAR, 12, 20, False, True, EVERYWHERE, events(13)), "final tick"),
        (0, Silent(STREAM, FAR, ((12, 20),)), "tick 92233"),
        (0, Silent(STREAM, 0, ((12, FAR + 1),)), "ranges"),
        (0, AckExpected(STREAM, FAR, EVERYWHERE), "tick 92233"),
        (2, Nack(STREAM, ((12, FAR + 1),)), "ranges"),
        (2, Done(2, ((STREAM, FAR),)), "tick 92233"),
        (2, Doubt(STREAM, FAR), "tick 92233"),
        (0, WindowProbe(0, False, -1), "impossible number"),
        (0, WindowProbe(1, False, 4), "no window for this direction"),
        (0, WindowUpdate(0, True, 0), "no traffic in this direction"),
        (0, WindowUpdate(1, True, 4), "has taken 4 bytes of 0"),
    ],
)
def test_an_invalid_message_closes_the_session_and_changes_nothing(
    peer: int, message: Any, why: str
) -> None:
    core = relay()
    with pytest.raises(RemoteProtocolError, match=why):
        core.handle(MessageReceived(peer, 10 + peer, message), 0)
    answer = core.handle(MessageReceived(2, 12, Nack(STREAM, ((1, 10),))), 0)
    (again,) = [e.message for e in answer if isinstance(e, Send)]
    assert [*again.run.sequences] == [3, 6]


def test_a_contradiction_changes_nothing_and_is_counted() -> None:
    """An access broker that lost events, with an accepted loss, states their ticks as silent."""
    core = relay()
    assert core.status().discrepancies == ()
    contradictions = (
        Events(0, 5, 9, False, True, EVERYWHERE, events(7)),
        Silent(STREAM, 0, ((2, 5),)),
    )
    for message in contradictions:
        told = core.handle(MessageReceived(0, 10, message), 0)
        assert not [each for each in told if isinstance(each, CloseSession)]
    answer = core.handle(MessageReceived(2, 12, Nack(STREAM, ((1, 10),))), 0)
    (again,) = [each.message for each in answer if isinstance(each, Send)]
    assert [*again.run.sequences] == [3, 6]
    assert "2 messages of neighbours" in core.status().discrepancies[0]


@pytest.mark.parametrize(
    "message, why",
    [
        (Join(StreamId(7, 0, 0), 1, 1), "no pubend has the stream"),
        (Join(StreamId(0, 4, 0), 1, 1), "no pubend has the stream"),
        (Join(STREAM, 1, 0), "an answer without a question"),
        (Join(STREAM, 0, 1), "an answer without a question"),
        (Join(StreamId(1, 0, 0), 1, 1), "an answer without a question"),
        (Joined(StreamId(1, 0, 0), 1, 1, 0, 5), "an answer without a question"),
        (Joined(StreamId(1, 0, 0), 2, 1, 0, 5), "an answer without a question"),
        (Joined(STREAM, 1, 1, 3, 5), "this is not a valid join"),
        (Joined(STREAM, 1, 1, 2, -1), "this is not a valid join"),
        (Joined(STREAM, 1, 1, 2, 1 << 54), "this is not a valid join"),
    ],
)
def test_a_join_that_cannot_be_closes_the_session_and_is_not_passed_on(
    message: Any, why: str
) -> None:
    core = core_of(1, order="total")
    for peer in (0, 2):
        core.handle(SessionEstablished(peer, 10 + peer, 1), 0)
    with pytest.raises(RemoteProtocolError, match=why):
        core.handle(MessageReceived(0, 10, message), 0)
    passed = core.handle(MessageReceived(0, 10, Join(STREAM, 1, 1)), 0)
    assert [e.peer for e in passed if isinstance(e, Send)] == [2]


@pytest.mark.parametrize("message", [Join(STREAM, 1, 1), Joined(STREAM, 1, 1, 2, 5)])
def test_join_messages_are_refused_without_total_order(message: Any) -> None:
    with pytest.raises(RemoteProtocolError, match="an answer without a question"):
        relay().handle(MessageReceived(0, 10, message), 0)


A = FilterVersion(2, 1, 2)
WANTS_A = FilterSet(A, (Named(2, parse_predicate("kind = 'a'")),), True)
WANTS_B = Named(2, parse_predicate("kind = 'b'"))
NOBODYS, TOO_NEW = FilterVersion(7, 1, 1), FilterVersion(1, 9, 1)
LEAPS = FilterVersion(2, 65_538, 1)
ZEROS = (0, 0, 0, 0)


@pytest.mark.parametrize(
    "message, why",
    [
        (FilterVersions((A, NOBODYS), ()), r"there is no filter \(7, 1, 1\)"),
        (FilterVersions((LEAPS,), ()), r"filter \(2, 65538, 1\) leaps from \(2, 1, 2\)"),
        (FilterVersions((), (7,)), r"lacks filters of \(7,\)"),
        (FilterSet(NOBODYS, (), True), r"there is no filter \(7, 1, 1\)"),
        (FilterSet(LEAPS, (), True), r"filter \(2, 65538, 1\) leaps from \(2, 1, 2\)"),
        (FilterSet(LEAPS, (), False), r"filter \(2, 65538, 1\) leaps from \(2, 1, 2\)"),
        (FilterChange(NOBODYS, (), (2,)), r"there is no filter \(7, 1, 1\)"),
        (FilterChange(LEAPS, (), (2,)), r"filter \(2, 65538, 1\) leaps from \(2, 1, 2\)"),
        (FilterChange(FilterVersion(2, 1, 3), (WANTS_B,), ()), "adds to .* what it has"),
        (Beginnings((Beginning(7, A, ZEROS),)), "no pubends begin"),
        (Beginnings((Beginning(0, A, (0, 0, 0, FAR)),)), "tick 92233"),
        (Beginnings((Beginning(0, A, ZEROS), Beginning(0, A, (0,)))), "no pubends begin"),
        (Beginnings((Beginning(0, NOBODYS, ZEROS),)), r"there is no filter \(7, 1, 1\)"),
        (Beginnings((Beginning(0, TOO_NEW, ZEROS),)), r"there is no filter \(1, 9, 1\)"),
    ],
)
def test_a_filter_that_cannot_be_closes_the_session_and_holds_nothing_back(
    message: Any, why: str
) -> None:
    core = core_of(1, filters=True)
    for peer in (0, 2):
        core.handle(SessionEstablished(peer, 10 + peer, 1), 0)
    core.handle(MessageReceived(2, 12, WANTS_A), 0)
    with pytest.raises(RemoteProtocolError, match=why):
        core.handle(MessageReceived(2, 12, message), 0)
    core.handle(SessionLost(2, 12, "silent"), 0)
    core.handle(SessionEstablished(2, 13, 1), 0)
    other = replace(events(7), attribute_table=(encode_attributes({"kind": "b"}),))
    for run, is_sent in ((events(3), True), (other, False)):
        told = core.handle(MessageReceived(0, 10, Events(0, 1, 9, False, True, EVERYWHERE, run)), 0)
        assert is_sent == any(isinstance(e, Send) and type(e.message) is Events for e in told)


@pytest.mark.parametrize(
    "message", [FilterVersions((), ()), WANTS_A, FilterChange(A, (), ()), Beginnings(())]
)
def test_filter_messages_are_refused_where_filters_are_off(message: Any) -> None:
    with pytest.raises(RemoteProtocolError, match="filters are off"):
        relay().handle(MessageReceived(2, 12, message), 0)


def test_a_broker_may_acknowledge_for_downstream_cells_but_not_for_its_own() -> None:
    core = make_protocol("gryphon", 1, paper_cells(), GryphonParameters(), decode_attribute_table)
    core.handle(Started(1, False, {}, {LOG: LogEnds()}, 0), 0)
    core.handle(SessionEstablished(2, 12, 1), 0)
    own, below = 0, 3
    core.handle(MessageReceived(2, 12, Done(below, ((STREAM, 4),))), 0)
    with pytest.raises(RemoteProtocolError, match=f"acknowledges for cell {own}"):
        core.handle(MessageReceived(2, 12, Done(own, ((STREAM, 4),))), 0)


def test_repeated_knowledge_is_no_contradiction() -> None:
    core = relay()
    core.handle(MessageReceived(0, 10, Events(0, 5, 10, True, True, EVERYWHERE, events(6))), 0)
    core.handle(
        MessageReceived(0, 10, Events(0, 1, 12, True, True, EVERYWHERE, events(3, 6, 11))), 0
    )
    assert core.statistics()["queue_publications"] == 3


def messages_to(effects: list[Effect], client: str) -> list[Any]:
    return [e.message for e in effects if isinstance(e, Send) and e.peer == client]


def published(core: DeliveryProtocol) -> tuple[bytes, dict[str, dict[str, Any]]]:
    """Return a log record and the rows of a core after a client has published."""
    core.handle(SessionEstablished("p", 1, 1), 0)
    (commit,) = [
        e for e in core.handle(MessageReceived("p", 1, CONNECT), 0) if isinstance(e, Commit)
    ]
    core.handle(Persisted(commit.token or 0), 0)
    run = PublicationRun(SourceId(0, 0, 1), range(1, 3), (BLOB,), bytes(2), 1, (b"xy",))
    effects = core.handle(MessageReceived("p", 1, Publish(run)), 0)
    (append,) = [e for e in effects if isinstance(e, Append)]
    rows = {change.table: {change.key: change.value} for change in commit.changes}
    return b"".join(map(bytes, append.records[0])), rows


@pytest.mark.parametrize(
    "broker, pubends, said",
    [
        (1, 4, "record 1: of pubend 0 of broker 0; this is broker 1"),
        (0, 0, ""),
        (0, -1, "publisher 0 was at pubend 1, and with pubends = 3 it is at 0: .* `pubends`"),
    ],
)
def test_a_log_of_another_broker_is_not_started_on(broker: int, pubends: int, said: str) -> None:
    record, rows = published(core_of(0))
    if not pubends:  # an unknown pubend, in a deployment with fewer
        record, pubends, said = b"\0\0\0\3" + record[4:], 2, "of pubend 3 of broker 0"
    if pubends < 0:  # another number of pubends, with the publisher elsewhere
        record, pubends = b"\0\0\0\1" + record[4:], 3
    parameters = GryphonParameters(pubends=pubends)
    core = make_protocol(
        "gryphon", broker, cells("p1-b1", "b1-s1"), parameters, decode_attribute_table
    )
    core.handle(Started(2, True, rows, {LOG: LogEnds(1, 2)}), 0)
    with pytest.raises(StorageCorrupt, match=said):
        core.handle(RecordsRead(LOG, 1, (record,)), 0)


def test_a_publisher_that_went_to_another_pubend_unseen_would_be_out_of_order() -> None:
    with (
        plant([MUTANTS["publisher-changes-its-pubend"]]),
        pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"),
    ):
        test_a_log_of_another_broker_is_not_started_on(0, -1, "publisher 0")


def test_a_log_with_decreasing_ticks_is_refused() -> None:
    """The log looks as if the end of one log was appended to another."""
    record, rows = published(core_of(0))
    later = record[:4] + (100).to_bytes(8) + record[12:]
    core = make_protocol(
        "gryphon", 0, cells("p1-b1", "b1-s1"), GryphonParameters(), decode_attribute_table
    )
    core.handle(Started(2, True, rows, {LOG: LogEnds(1, 4)}), 0)
    core.handle(RecordsRead(LOG, 1, (record, later)), 0)
    with pytest.raises(StorageCorrupt, match="log events, record 3: tick 1 of pubend 0, after 101"):
        core.handle(RecordsRead(LOG, 3, (record,)), 0)


def test_a_client_reconnecting_during_log_reading_is_answered_on_its_last_session() -> None:
    record, rows = published(core_of(0))
    core = make_protocol(
        "gryphon", 0, cells("p1-b1", "b1-s1"), GryphonParameters(), decode_attribute_table
    )
    core.handle(Started(2, True, rows, {LOG: LogEnds(1, 2)}), 0)
    assert core.status().state == "recovering"
    for session in (1, 2):
        assert core.handle(SessionEstablished("p", session, 1), 0) == []
        sequences = {"next_sequence": 3, "highest_sequence": 2}
        continuing = replace(CONNECT, source=SourceId(0, 0, 1), **sequences)
        assert core.handle(MessageReceived("p", session, continuing), 0) == []
        if session == 1:
            core.handle(SessionLost("p", 1, "silent"), 0)
    core.handle(SessionEstablished(1, 9, 1), 0)
    core.handle(MessageReceived(1, 9, Nack(STREAM, ())), 0)
    effects = core.handle(RecordsRead(LOG, 1, (record,)), 0)
    assert [type(message) for message in messages_to(effects, "p")] == [Connected]
    assert core.status().state == "running"
    assert core.status().queued == 2
    closed = [e for e in effects if isinstance(e, CloseSession)]
    assert [each.peer for each in closed] == [1], "what it said was judged all the same"


@pytest.mark.parametrize(
    "values, why",
    [
        ({"pubends": 0}, "pubends = 0; at least 1"),
        ({"events_per_message": -1}, "events_per_message = -1; 0 for any number"),
        ({"nack_window": 0}, "nack_window = 0; at least 1"),
        ({"ack_expected_check_ns": 0}, "ack_expected_check_ns = 0; at least 1"),
        ({"nack_repetition_ns": 600, "nack_repetition_limit_ns": 500}, "is less than"),
    ],
)
def test_parameters_that_cannot_be_are_refused(values: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        GryphonParameters.from_mapping(values, "t").check("t")


def test_a_subscription_repeated_on_a_new_session_is_confirmed_once_durable() -> None:
    core = core_of(2)
    connect = Connect(False, 0, 1, 0, ())

    def attach(session: int) -> list[Effect]:
        core.handle(SessionEstablished("s1", session, 1), 0)
        done = core.handle(MessageReceived("s1", session, connect), 0)
        for token in tokens(done):
            done += core.handle(Persisted(token), 0)
        return core.handle(MessageReceived("s1", session, Subscribe(1, parse_predicate("true"))), 0)

    (token,) = tokens(attach(7))
    core.handle(SessionLost("s1", 7, "silent"), 0)
    assert not tokens(attach(8)), "it is being made already"
    told = [each.message for each in core.handle(Persisted(token), 0) if type(each) is Send]
    assert [each.state for each in told if type(each) is Subscribed] == ["started"]


def tokens(effects: list[Effect]) -> list[int]:
    """Return the tokens of the commits that messages wait for."""
    return [each.token for each in effects if type(each) is Commit and each.token is not None]


def outbid_by(message: Any) -> FilterSet:
    """Return b1's filter statement after s1 stated a later filter in the name of b1."""
    core = core_of(1, filters=True)
    for peer in (0, 2):
        core.handle(SessionEstablished(peer, 10 + peer, 1), 0)
    told = core.handle(MessageReceived(2, 12, message), 0)
    (found,) = [e.message for e in told if isinstance(e, Send) and e.peer == 0]
    assert core.status().discrepancies
    again = core.handle(MessageReceived(2, 12, message), 0)
    assert not any(
        isinstance(e, Send) and type(e.message) is FilterSet and e.peer == 0 for e in again
    )
    return found


@pytest.mark.parametrize(
    "message",
    [
        FilterVersions((TOO_NEW,), ()),
        FilterSet(TOO_NEW, (), True),
        FilterSet(TOO_NEW, (), False),
        FilterChange(TOO_NEW, (), (2,)),
    ],
    ids=["versions", "set", "part of a set", "change"],
)
def test_a_filter_in_its_name_that_it_has_not_stated_is_outbid(message: Any) -> None:
    assert outbid_by(message) == FilterSet(FilterVersion(1, 9, 2), (), True)
    with plant([MUTANTS["forged-filter-stays"]]), pytest.raises((ValueError, AssertionError)):
        outbid_by(message)
