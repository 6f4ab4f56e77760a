"""Tests of sessions: the choice among several connections, and admitted peers."""

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from brokerd.sessions.messages import (
    SEAL_BYTES,
    START_BYTES,
    WIRE_VERSION,
    Farewell,
    Hello,
    StateMark,
)
from brokerd.sessions.session import (
    DEPARTED,
    MAXIMUM_CLIENT_NAME,
    Accepted,
    SelfDescription,
    Session,
    SessionState,
    SessionTable,
    client_hello,
)

NAMES = {0: "b0", 1: "b1", 2: "b2"}


def table(number: int, incarnation: int = 1) -> SessionTable:
    names = {other: name for other, name in NAMES.items() if other != number}
    own = SelfDescription("p", "d", "t", NAMES[number], number, incarnation, names)
    return SessionTable(own)


def opened(opener: SessionTable, peer: int) -> tuple[Session, Hello]:
    attempt = opener.open(peer)
    assert attempt is not None
    return attempt, opener.hello(attempt)


def joined(opener: SessionTable, accepter: SessionTable) -> tuple[Session, Session]:
    """Return a session that both ends have established: the opener's end and the accepter's."""
    attempt, hello = opened(opener, accepter.own.number)
    accepted = accepter.accept(hello)
    assert isinstance(accepted, Accepted)
    assert accepted.session is not None
    assert opener.on_answer(attempt, accepted.answer) is None
    return attempt, accepted.session


def test_two_brokers_agree_on_one_session() -> None:
    b0, b1 = table(0, incarnation=4), table(1, incarnation=7)
    near, far = joined(b0, b1)
    assert near.identity == far.identity
    assert (near.incarnation, far.incarnation) == (7, 4)
    assert b0.sessions == {1: near}
    assert b1.sessions == {0: far}
    assert b0.open(1) is None


@pytest.mark.parametrize("smaller_arrives_first", [True, False])
def test_the_attempt_of_the_smaller_broker_wins_over_a_crossing_attempt(
    smaller_arrives_first: bool,
) -> None:
    b0, b1 = table(0), table(1)
    kept, from_b0 = opened(b0, 1)
    given_up, from_b1 = opened(b1, 0)
    if not smaller_arrives_first:
        assert isinstance(b0.accept(from_b1), Farewell)
    accepted = b1.accept(from_b0)
    assert isinstance(accepted, Accepted)
    assert accepted.abandons is given_up
    assert given_up.state is SessionState.CLOSED
    if smaller_arrives_first:
        refusal = b0.accept(from_b1)
        assert isinstance(refusal, Farewell)
        assert refusal.kind == "crossed"
    assert b0.on_answer(kept, accepted.answer) is None
    assert b0.sessions[1].identity == b1.sessions[0].identity == kept.identity


def test_a_crossed_attempt_that_arrives_late_does_not_replace_the_session() -> None:
    b0, b1 = table(0), table(1)
    _, late = opened(b1, 0)
    near, _ = joined(b0, b1)
    refusal = b0.accept(late)
    assert isinstance(refusal, Farewell)
    assert b0.sessions == {1: near}


def test_a_broker_may_replace_a_lost_session_that_its_peer_considers_open() -> None:
    b0, b1 = table(0), table(1)
    near, far = joined(b0, b1)
    b1.close(far)
    _, again = opened(b1, 0)
    accepted = b0.accept(again)
    assert isinstance(accepted, Accepted)
    assert accepted.replaces is near
    assert b0.sessions == {1: accepted.session}
    assert accepted.session is not None
    assert accepted.session.number == near.number + 1


def test_an_opener_may_replace_a_session_after_a_lost_answer() -> None:
    b0, b1 = table(0), table(1)
    attempt, hello = opened(b0, 1)
    first = b1.accept(hello)
    assert isinstance(first, Accepted)
    b0.close(attempt)
    _, again = opened(b0, 1)
    second = b1.accept(again)
    assert isinstance(second, Accepted)
    assert second.replaces is first.session


def test_a_restarted_broker_replaces_its_session_and_an_earlier_incarnation_does_not() -> None:
    b0, b1 = table(0, incarnation=2), table(1)
    joined(b0, b1)
    _, newer = opened(table(0, incarnation=3), 1)
    _, older = opened(table(0, incarnation=1), 1)
    assert isinstance(b1.accept(newer), Accepted)
    assert isinstance(b1.accept(older), Farewell)


def test_whatever_crosses_there_is_at_most_one_session_and_retries_bring_it_up() -> None:
    """Hellos of three attempts, the middle one after a lost session, arrive in any order."""
    for order in permutations(range(3)):
        b0, b1 = table(0), table(1)
        hellos: list[tuple[SessionTable, SessionTable, Session, Hello]] = []
        for opener, accepter in ((b0, b1), (b1, b0), (b0, b1)):
            for attempt in list(opener.attempts.values()):
                opener.close(attempt)  # timed out
            attempt, hello = opened(opener, accepter.own.number)
            hellos.append((opener, accepter, attempt, hello))
        for place in order:
            opener, accepter, attempt, hello = hellos[place]
            accepted = accepter.accept(hello)
            over = attempt.state is SessionState.CLOSED
            if isinstance(accepted, Accepted) and over and accepted.session is not None:
                accepter.close(accepted.session)  # the opener closed the connection
            elif isinstance(accepted, Accepted):
                assert opener.on_answer(attempt, accepted.answer) is None
        if not b0.sessions and not b1.sessions:
            for one in (*b0.attempts.values(), *b1.attempts.values()):
                (b0 if one.peer == 1 else b1).close(one)
            joined(b1, b0)
        assert b0.sessions[1].identity == b1.sessions[0].identity, order


@pytest.mark.parametrize("known", [1, 70_000])
def test_an_incarnation_that_leaps_is_refused_and_the_next_one_is_not(known: int) -> None:
    """A broker with an invented incarnation could never have a session again."""
    ours = table(1)
    joined(table(2, known), ours)
    _, forged = opened(table(2, known + (1 << 16) + 1), 1)
    refusal = ours.accept(forged)
    assert isinstance(refusal, Farewell)
    assert "leaps from" in refusal.reason
    _, restarted = opened(table(2, known + 4_097), 1)
    assert isinstance(ours.accept(restarted), Accepted)


def test_an_answer_with_an_incarnation_that_leaps_is_refused() -> None:
    ours = table(1)
    attempt, hello = opened(ours, 2)
    accepted = table(2, (1 << 20) + 1).accept(hello)
    assert isinstance(accepted, Accepted)
    refusal = ours.on_answer(attempt, accepted.answer)
    assert refusal is not None
    assert "leaps from 0" in refusal.reason


def test_a_client_supersedes_its_older_session() -> None:
    broker = table(0)
    first = broker.accept(client_hello("c", "", 1, 1))
    second = broker.accept(client_hello("c", "d", 1, 1))
    assert isinstance(first, Accepted)
    assert isinstance(second, Accepted)
    assert second.replaces is first.session
    assert broker.sessions == {"c": second.session}


def test_a_probe_gets_an_answer_and_no_session() -> None:
    b0, b1 = table(0), table(1)
    joined(b0, b1)
    accepted = b1.accept(b0.probe_hello())
    assert isinstance(accepted, Accepted)
    assert accepted.session is None
    assert b0.on_probe_answer(1, accepted.answer) is None
    assert "answers in the place of broker 2" in str(b0.on_probe_answer(2, accepted.answer))
    assert 0 in b1.sessions


@pytest.mark.parametrize(
    "change, why",
    [
        ({"wire_version": 2}, f"wire version 2; this is {WIRE_VERSION}"),
        ({"protocol": "q"}, "protocol 'q'; this is 'p'"),
        ({"protocol": ""}, "protocol"),
        ({"deployment_id": "other"}, "deployment 'other'; this is 'd'"),
        ({"topology_digest": "x" * 1000}, "topology digest 'xxx"),
        ({"number": 1}, "'b0' is not number 1 near b1"),
        ({"number": 7}, "number 7"),
        ({"name": "b2"}, "'b2' is not number 0"),
        ({"role": "client", "name": ""}, "1 to 100 printable"),
        ({"role": "client", "name": "x" * 101}, "1 to 100 printable"),
        ({"role": "client", "name": "a\nb"}, "1 to 100 printable"),
        ({"role": "client", "deployment_id": "other"}, "deployment"),
    ],
)
def test_a_hello_that_does_not_fit_is_refused_with_the_reason(
    change: dict[str, Any], why: str
) -> None:
    b0, b1 = table(0), table(1)
    attempt, hello = opened(b0, 1)
    refusal = b1.accept(replace(hello, **change))
    assert isinstance(refusal, Farewell)
    assert refusal.kind == "refused"
    assert why in refusal.reason
    assert len(refusal.reason) < 300
    assert b1.sessions == {}
    assert attempt.state is SessionState.HANDSHAKING


def test_an_answer_from_another_peer_or_attempt_is_refused() -> None:
    b0, b1, b2 = table(0), table(1), table(2)
    attempt, _ = opened(b0, 1)
    for answer in (
        replace(b2.probe_hello(), role="broker", session=attempt.identity),
        replace(b1.probe_hello(), session=attempt.identity),
        replace(b1.probe_hello(), role="broker", session=attempt.identity + 2),
    ):
        assert isinstance(b0.on_answer(attempt, answer), Farewell)
    assert b0.sessions == {}


def test_a_closed_connection_sends_nothing() -> None:
    b0 = table(0)
    attempt, _ = opened(b0, 1)
    b0.close(attempt)
    assert b0.attempts == {}
    with pytest.raises(AssertionError):
        attempt.advance(SessionState.ESTABLISHED)


def test_a_hello_of_a_closed_session_is_refused() -> None:
    b0, b1 = table(0), table(1)
    _, hello = opened(b0, 1)
    accepted = b1.accept(hello)
    assert isinstance(accepted, Accepted)
    assert accepted.session is not None
    b1.close(accepted.session)
    assert b1.accept(hello) == Farewell("refused", f"session {hello.session} is over")


def test_attempts_of_either_end_have_distinct_identities() -> None:
    """Otherwise the identity in an opener's Hello could be taken for another attempt's."""
    numbers = []
    for opener, peer in ((table(0), 1), (table(1), 0)):
        for _ in range(3):
            attempt, _ = opened(opener, peer)
            numbers.append(attempt.identity)
            opener.close(attempt)
    assert len({*numbers}) == 6


# ---------------------------------------------------------------- each reason of its own


def test_a_broker_with_a_session_or_an_attempt_opens_no_other() -> None:
    b0, b1 = table(0), table(1)
    attempt = b0.open(1)
    assert attempt is not None
    assert b0.open(1) is None
    assert b0.attempts == {1: attempt}
    assert b0.open(2) is not None
    b0.close(attempt)
    near, _ = joined(b0, b1)
    assert b0.open(1) is None
    b0.close(near)
    assert b0.open(1) is not None


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"protocol": "x"}, "protocol 'x'"),
        ({"session": 99}, "answered for session 99"),
        ({"number": 2, "name": "b2"}, "in the place of broker 1"),
        ({"role": "client", "number": 1}, "in the place of broker 1"),
    ],
)
def test_each_fault_of_an_answer_is_the_reason_of_its_refusal(
    changes: dict[str, Any], reason: str
) -> None:
    """An answer with several faults is refused for the first of them."""
    b0, b1 = table(0), table(1)
    attempt, hello = opened(b0, 1)
    accepted = b1.accept(hello)
    assert isinstance(accepted, Accepted)
    for others in ({}, {"session": 98}) if "session" not in changes else ({},):
        refusal = b0.on_answer(attempt, replace(accepted.answer, **others, **changes))
        assert isinstance(refusal, Farewell)
        assert reason in refusal.reason
    assert b0.attempts == {1: attempt}
    assert b0.on_answer(attempt, accepted.answer) is None


def test_the_answer_to_a_probe_is_checked_as_any_other() -> None:
    b0, b1 = table(0), table(1)
    accepted = b1.accept(replace(b0.probe_hello()))
    assert isinstance(accepted, Accepted)
    answer = accepted.answer
    assert b0.on_probe_answer(1, answer) is None
    assert "protocol" in str(b0.on_probe_answer(1, replace(answer, protocol="x")))
    assert "wire version" in str(b0.on_probe_answer(1, replace(answer, wire_version=0)))
    assert "in the place of broker 2" in str(b0.on_probe_answer(2, answer))


class Certificate:
    """An identity that refuses all names but one, and records the questions."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.questions: list[tuple[str, str, str]] = []

    def refuses(self, role: str, name: str, deployment: str) -> str | None:
        self.questions.append((role, name, deployment))
        return None if name == self.name else f"the certificate is of {self.name}"


def test_a_certificate_is_checked_for_each_connection_in_either_direction() -> None:
    own, other = Certificate("b0"), Certificate("b2")
    b0, b1 = table(0), table(1)
    _, hello = opened(b0, 1)
    refusal = b1.accept(hello, other)  # type: ignore[arg-type]
    assert isinstance(refusal, Farewell)
    assert refusal.reason == "the certificate is of b2"
    wrong = b1.accept(replace(hello, protocol="x"), own)  # type: ignore[arg-type]
    assert isinstance(wrong, Farewell)
    assert "protocol" in wrong.reason
    assert own.questions == []
    assert isinstance(b1.accept(hello, own), Accepted)  # type: ignore[arg-type]
    assert own.questions == [("broker", "b0", "d")]
    assert b1.impostor(0, own) is None  # type: ignore[arg-type]
    assert b1.impostor(0, other) == "the certificate is of b2"  # type: ignore[arg-type]
    assert b1.impostor(0, None) is None
    for certificate in (None, own):
        assert b1.impostor(7, certificate) == DEPARTED  # type: ignore[arg-type]


def test_a_broker_that_has_left_leaves_nothing_behind() -> None:
    b0, b1 = table(0), table(1)
    near, far = joined(b0, b1)
    b0.close(near)
    b1.close(far)
    for one, peer in ((b0, 1), (b1, 0)):
        mark = StateMark(0, 1, b"x" * START_BYTES, 1, 1, b"y" * SEAL_BYTES)
        assert one.on_state_advance(peer, mark, None) is None
        assert one.witness.marks == {peer: mark}
        one.forget(peer)
        for name in ("sessions", "attempts", "_newest", "_last_attempts", "_incarnations"):
            assert getattr(one, name) == {}, name
        assert (one.witness.marks, one.witness.changed) == ({}, {})
        one.forget(peer)


def test_a_client_has_no_state_mark() -> None:
    b0 = table(0)
    mark = StateMark(0, 1, b"x" * START_BYTES, 1, 1, b"y" * SEAL_BYTES)
    assert b0.on_state_advance("a client", mark, None) == "a client keeps no state of a broker"
    assert b0.witness.marks == {}


def test_a_refusal_without_a_mark_proves_nothing() -> None:
    b0 = table(0)
    b0.on_refusal(1, Farewell("refused", "because"))
    assert (b0.loss, b0.lost_incarnation) == ("", 0)


@pytest.mark.parametrize(
    "name, accepted",
    [
        ("c", True),
        ("", False),
        ("c" * MAXIMUM_CLIENT_NAME, True),
        ("c" * (MAXIMUM_CLIENT_NAME + 1), False),
        ("c\n", False),
    ],
)
def test_a_client_has_a_short_printable_name(name: str, accepted: bool) -> None:
    answer = table(0).accept(client_hello(name, "d", 1, 1))
    assert isinstance(answer, Accepted) == accepted
