"""Invalid messages of peers about released ticks, and answers to old tokens."""

from dataclasses import replace
from pathlib import Path

import pytest

from brokerd.errors import ConfigError, RemoteProtocolError
from brokerd.model.client_messages import Connect, Refused, Subscribe, Subscribed
from brokerd.model.identity import StreamId
from brokerd.model.predicate_text import parse_predicate
from brokerd.protocols.durable.messages import (
    Beyond,
    Deferred,
    Fetch,
    Fetched,
    Held,
    Hold,
    LetGo,
    Moved,
    NothingFetched,
    Released,
)
from brokerd.protocols.durable.parameters import LEAST_LEASE_NS, DurableParameters
from brokerd.protocols.gryphon.messages import EVERYWHERE, Events
from brokerd.protocols.interface import (
    Deliver,
    MessageReceived,
    Send,
    SessionEstablished,
    SessionLost,
)
from brokerd.protocols.registry import check_runs_on, definition_of
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.units import SECOND_NS
from tests.helpers.durable_cores import events, handle, relay
from tests.helpers.gryphon_stories import paper_cells
from tests.helpers.stories import is_story
from tests.helpers.stream_runs import STREAM

MUTANTS = bugs_of("durable")

FAR = (1 << 63) - 1
TESTS = Path(__file__).parents[2]
ELSEWHERE = {
    "a token of another deployment": "client/test_store.py::"
    "test_a_resume_token_with_another_owner_is_refused",
    "a token of the future": "protocols/durable/test_tokens.py::"
    "test_a_token_of_the_future_is_refused",
    "a damaged token": "client/test_store.py::"
    "test_a_damaged_resume_token_is_refused_wherever_it_is_damaged",
    "a token of a pubend that is gone": "protocols/durable/test_tokens.py::"
    "test_a_token_of_a_missing_pubend_is_refused",
    "two connections of one subscriber": "runtime/test_links.py::"
    "test_a_newer_client_session_supersedes_the_older_with_a_reason",
    "another filter under the same name": "protocols/durable/test_wrong_input.py::"
    "test_a_changed_filter_is_refused_without_loss_for_the_original_filter",
    "an end while catching up": "protocols/durable/test_returns.py::"
    "test_an_unsubscribe_during_catch_up_stops_delivery_and_blocks_no_subscriber",
    "matches that are cut in the middle": "protocols/durable/test_disk_crashes.py::"
    "test_a_log_of_matches_that_is_cut_or_overwritten_is_refused",
    "rows of another broker": "runtime/test_stores.py::test_rows_of_another_broker_are_refused",
    "a broker on a full disk": "protocols/durable/test_disk_crashes.py::"
    "test_while_the_disk_is_full_nothing_is_released_and_nothing_is_lost",
    "an application on a full disk": "client/test_transactions.py::"
    "test_a_file_on_a_full_disk_keeps_its_rows_and_receives_the_rest_later",
    "less kept than subscribers are away": "bench/test_churn.py::"
    "test_churn_that_a_protocol_does_not_bear_is_warned_of",
}


@pytest.mark.parametrize("what", ELSEWHERE)
def test_every_user_error_has_a_test(what: str) -> None:
    assert is_story(ELSEWHERE[what], TESTS)


@pytest.mark.parametrize(
    "peer, message, why",
    [
        (0, Fetch(STREAM, ((1, 2),)), "does not go there"),
        (2, Fetch(STREAM, ()), "ranges"),
        (2, Fetch(STREAM, ((5, 5),)), "ranges"),
        (2, Fetch(STREAM, ((5, 6), (1, 2))), "ranges"),
        (2, Fetch(STREAM, ((5, FAR),)), "tick"),
        (0, Beyond(STREAM, FAR, ((11, 12),)), "tick"),
        (0, NothingFetched(STREAM, FAR, ((1, 4),)), "tick"),
        (0, Fetched(FAR, ((1, 4),), events(3)), "tick"),
        (2, Released(2, ((STREAM, FAR),)), "tick"),
        (2, Hold(0, 2, "c", 1, 1, ((StreamId(0, 0, 0), FAR),), 1), "tick"),
        (2, Beyond(STREAM, 9, ((11, 12),)), "does not arrive from this peer"),
        (0, Beyond(STREAM, 9, ()), "ranges"),
        (2, Deferred(STREAM, ((11, 12),)), "does not arrive from this peer"),
        (0, Deferred(STREAM, ()), "ranges"),
        (2, Fetch(StreamId(9, 0, 0), ((5, 6),)), "no pubend has the stream"),
        (2, Fetched(0, ((1, 4),), events(3)), "does not arrive from this peer"),
        (0, Fetched(0, ((1, 3),), events(3)), "outside"),
        (2, NothingFetched(STREAM, 0, ((1, 4),)), "does not arrive from this peer"),
        (0, NothingFetched(STREAM, 0, ()), "ranges"),
        (0, Released(0, ((STREAM, 1),)), "does not go there"),
        (2, Released(2, ((StreamId(1, 0, 0), 7),)), "which has fewer ticks"),
        (2, Released(0, ((StreamId(1, 0, 0), 7),)), "releases for cell 0"),
        (0, Hold(1, 2, "c", 1, 1, (), 1), "broker 2 is not there"),
        (0, Hold(1, 9, "c", 1, 1, (), 1), "no pubend has the stream"),
        (0, Hold(0, 0, "c", 1, 1, (), 1), "broker 0 is not here"),
        (0, Hold(2, 0, "c", 0, 1, (), 1), "impossible numbers"),
        (0, Hold(2, 0, "c", 1, -1, (), 1), "impossible numbers"),
        (2, Hold(0, 2, "c", 1, 1, ((StreamId(1, 0, 0), 5),), 1), "not of 0"),
        (2, Held(0, 2, "c", 1, 1, ((StreamId(0, 0, 0), 5),), 1), "not of 2"),
        (2, Moved(2, 2, "c", 1, 1), "broker 2 is not here"),
        (2, LetGo(0, 0, "c", 1, 1), "broker 0 is not there"),
    ],
)
def test_invalid_messages_of_a_neighbour_are_refused(peer, message, why) -> None:
    core = relay()
    with pytest.raises(RemoteProtocolError, match=why):
        core.handle(MessageReceived(peer, 10 + peer, message), 0)


def test_a_changed_filter_is_refused_without_loss_for_the_original_filter() -> None:
    core, wanted, other = relay(), parse_predicate("true"), parse_predicate("kind = 'b'")
    connect = Connect(False, 1, 1, 0, ())
    for session, predicates in ((20, (wanted,)), (21, (other, wanted))):
        handle(core, SessionEstablished("c", session, 1))
        handle(core, MessageReceived("c", session, connect))
        told = [handle(core, MessageReceived("c", session, Subscribe(1, p))) for p in predicates]
        if session == 20:
            handle(core, SessionLost("c", session, "closed"))
            missed = Events(0, 10, 13, False, True, EVERYWHERE, events(12))
            handle(core, MessageReceived(0, 10, missed))
    refused, resumed = [
        [each.message for each in step if type(each) is Send and each.peer == "c"] for step in told
    ]
    assert refused == [
        Refused("subscribe", 1, "subscription 1 exists with another predicate", False)
    ]
    assert [each.state for each in resumed if type(each) is Subscribed] == ["started"]
    assert [each.item.run.sequences for each in told[1] if type(each) is Deliver] == [(12,)]


def test_an_unrequested_answer_changes_nothing() -> None:
    core = relay()
    assert core.handle(MessageReceived(0, 10, Fetched(0, ((1, 4),), events(3))), 0) == []


def test_an_intermediate_broker_answers_with_its_events_and_requests_the_rest() -> None:
    """The broker's own silence is no answer: downstream filters may have excluded these ticks."""
    core = relay()
    effects = core.handle(MessageReceived(2, 12, Fetch(STREAM, ((3, 5),))), 0)
    said = [(each.peer, each.message) for each in effects if hasattr(each, "message")]
    assert said == [(2, Fetched(0, ((3, 4),), events(3))), (0, Fetch(STREAM, ((4, 5),)))]
    (told,) = core.handle(MessageReceived(0, 10, NothingFetched(STREAM, 2, ((4, 5),))), 0)
    assert (told.peer, told.message) == (2, NothingFetched(STREAM, 2, ((4, 5),)))


def test_a_request_beyond_a_stream_is_answered_with_its_end() -> None:
    core = relay()
    (told,) = core.handle(MessageReceived(2, 12, Fetch(StreamId(1, 0, 0), ((5, 6),))), 0)
    assert (told.peer, told.message) == (2, Beyond(StreamId(1, 0, 0), 0, ((5, 6),)))
    (asked, *_) = core.handle(MessageReceived(2, 12, Fetch(STREAM, ((11, 12),))), 0)
    assert (asked.peer, asked.message) == (0, Fetch(STREAM, ((11, 12),)))
    (told,) = core.handle(MessageReceived(0, 10, Beyond(STREAM, 9, ((11, 12),))), 0)
    assert (told.peer, told.message) == (2, Beyond(STREAM, 9, ((11, 12),)))


def test_warnings_state_the_cost_of_early_release() -> None:
    assert DurableParameters().warnings() == ()
    (warning,) = DurableParameters(max_retain_ns=2_500_000_000).warnings()
    assert "disconnected for longer than 2.5 s" in warning


def test_a_hold_is_not_cut_short_by_default_but_for_its_bug() -> None:
    test_a_hold_lasts_as_long_as_its_client_may_be_away()
    with plant([MUTANTS["default-hold-ends-before-its-client"]]), pytest.raises(AssertionError):
        test_a_hold_lasts_as_long_as_its_client_may_be_away()


def test_a_hold_lasts_as_long_as_its_client_may_be_away() -> None:
    day_ns = 24 * 3600 * SECOND_NS
    chosen = DurableParameters.from_mapping({"client_linger_ns": 2 * day_ns}, "here")
    assert chosen.hold_lease_ns == 2 * day_ns
    assert {*chosen.gap_ages_ns} == {None}
    assert DurableParameters().hold_lease_ns == DurableParameters().client_linger_ns
    at_once = DurableParameters.from_mapping({"client_linger_ns": 0}, "here")
    at_once.check("here")
    assert at_once.hold_lease_ns == LEAST_LEASE_NS


def test_a_lease_that_is_shorter_than_an_absence_is_warned_of_and_promises_gaps() -> None:
    chosen = DurableParameters.from_mapping({"hold_lease_ns": 60 * SECOND_NS}, "here")
    (warning,) = chosen.warnings()
    assert "unreachable for 60 s may receive a gap" in warning
    assert definition_of("durable").promises_with(chosen).gap_age_ns == 60 * SECOND_NS
    both = replace(chosen, max_retain_ns=5 * SECOND_NS)
    assert definition_of("durable").promises_with(both).gap_age_ns == 5 * SECOND_NS
    assert definition_of("durable").promises_with(DurableParameters()).gaps == ()


@pytest.mark.parametrize("lease_ns", [0, 1, LEAST_LEASE_NS - 1])
def test_a_lease_that_cannot_be_renewed_is_refused(lease_ns: int) -> None:
    chosen = DurableParameters.from_mapping({"hold_lease_ns": lease_ns}, "core")
    with pytest.raises(ConfigError, match=f"core: hold_lease_ns = {lease_ns}; at least 1000000000"):
        chosen.check("core")


def test_total_order_is_refused() -> None:
    check_runs_on(paper_cells(), "durable")
    with pytest.raises(ConfigError, match="order = 'total'; durable supports publisher order"):
        DurableParameters(order="total").check("here")
    with pytest.raises(ConfigError, match="catchup_batch = 0; at least 1"):
        DurableParameters(catchup_batch=0).check("here")


@pytest.mark.parametrize(
    "text, wrong",
    [
        ("0:age=0s", "retention: 0: age = '0s'; at least 1ms, and no bound without age"),
        ("1:bytes=0B", "retention: 1: bytes = '0B'; at least 1B, and no bound without bytes"),
        ("1:bytes=-1B", "retention: 1: bytes = '-1B': a size has a number and a unit"),
        ("0:age=5", "retention: 0: age = '5': a duration has .* did you mean \"5s\""),
        ("0:size=5B", "retention: 0: 'size=5B': a policy is age=DURATION, bytes=SIZE"),
        ("0:age=1s,age=2s", "retention: 0: age = '2s': the key is there twice"),
        ("0:", "retention: 0: '': a policy is age=DURATION"),
        ("0", "retention: '0': NUMBER:POLICY, as in 0:age=60s"),
        ("0:never;0:never", "retention: 0 is there twice"),
        ("4:never", "retention: '4' is no stream; 0 to 3"),
        ("-1:never", "retention: '-1' is no stream; 0 to 3"),
        ("p1:never", "retention: 'p1' is no stream; 0 to 3"),
    ],
)
def test_a_policy_of_no_stream_or_without_a_valid_bound_is_refused(text: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match=f"here: {wrong}"):
        DurableParameters(retention=text).check("here")


def test_policies_replace_the_bounds_of_all_pubends_and_warn_of_their_cost() -> None:
    chosen = DurableParameters(
        max_retain_ns=5 * SECOND_NS, retention=" 2: age=60s, bytes=1KiB;0:never"
    )
    chosen.check("here")
    assert [*map(str, chosen.policies)] == ["never", "age=5s", "age=1min,bytes=1KiB", "age=5s"]
    promised = definition_of("durable").promises_with(chosen)
    assert promised.gap_ages_ns == (None, 5 * SECOND_NS, 0, 5 * SECOND_NS)
    assert promised.gap_age_ns == 0
    assert promised.as_mapping()["gap_ages_ns"] == [*promised.gap_ages_ns]
    assert any("retention of pubend 2 is age=1min,bytes=1KiB" in each for each in chosen.warnings())
