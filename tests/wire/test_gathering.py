"""Tests of joined messages: same content as the single messages, in the same order."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.model.client_messages import Acknowledge, Deliveries, Publish, PublishAcknowledged
from brokerd.model.identity import SourceId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.delta_tree.messages import (
    PublicationConfirmation,
    PublicationCopy,
    RecoveryFlag,
)
from brokerd.protocols.gryphon.messages import WindowProbe
from brokerd.wire import framing
from brokerd.wire.framing import gather

A, B = SourceId(0, 0, 1), SourceId(0, 1, 1)


def run(first: int, count: int = 1, source: SourceId = A, blob: bytes = b"a") -> PublicationRun:
    payload = bytes((first + place) % 256 for place in range(count))
    return PublicationRun(source, range(first, first + count), (blob,), bytes(count), 1, (payload,))


def contents(message: Any) -> list[tuple[Any, ...]]:
    return [(m[0], m[1], bytes(m[2])) for m in message.run.publications()]


def test_separately_received_publications_are_joined_into_one_run() -> None:
    messages = [Publish(run(n, blob=bytes([97 + n % 2]))) for n in (1, 2, 3, 7)]
    (joined,) = gather(messages)
    assert joined.run.attribute_table == (b"b", b"a")
    assert contents(joined) == [one for message in messages for one in contents(message)]


@pytest.mark.parametrize(
    "first, second",
    [
        (Publish(run(1)), Publish(run(2, source=B))),
        (Publish(run(2)), Publish(run(1))),
        (Publish(run(1, 3)), Publish(run(3))),
        (PublicationCopy(run(1), (1, 2)), PublicationCopy(run(2), (1, 3))),
        (Deliveries(run(1), (1,)), Deliveries(run(2), (1, 2))),
        (PublishAcknowledged(1, 2), PublishAcknowledged(4, 5)),
        (Acknowledge(A, 1, 2), Acknowledge(B, 3, 4)),
        (RecoveryFlag(True), RecoveryFlag(True)),
        (Publish(run(1)), RecoveryFlag(True)),
    ],
)
def test_messages_are_not_joined_if_their_meaning_would_change(first: Any, second: Any) -> None:
    assert gather([first, second]) == [first, second]


def test_ranges_are_joined_where_they_meet() -> None:
    assert gather([Acknowledge(A, 1, 2), Acknowledge(A, 3, 9)]) == [Acknowledge(A, 1, 9)]
    assert gather([PublishAcknowledged(1, 2), PublishAcknowledged(3, 3)]) == [
        PublishAcknowledged(1, 3)
    ]
    confirmations = [PublicationConfirmation(((A, 1, 2),)), PublicationConfirmation(((B, 5, 5),))]
    assert gather(confirmations) == [PublicationConfirmation(((A, 1, 2), (B, 5, 5)))]


def test_a_deferrable_message_does_not_separate_joined_publications() -> None:
    first, second, other = Publish(run(1)), Publish(run(2)), Publish(run(3, source=B))
    probes = [WindowProbe(0, False, sent_bytes) for sent_bytes in (10, 20, 30)]
    joined = gather([first, probes[0], probes[1], second, probes[2], other])
    assert [contents(each) for each in joined[:1]] == [[*contents(first), *contents(second)]]
    assert joined[1:] == [*probes, other]


def test_a_deferrable_message_does_not_pass_an_unjoined_message() -> None:
    probe, flag, first = WindowProbe(0, False, 10), RecoveryFlag(True), Publish(run(1))
    for messages in ([probe, flag], [flag, probe, flag], [first, probe, flag]):
        assert gather(messages) == messages
    later = [flag, Publish(run(2))]
    assert gather([first, *later]) == [first, *later]


def test_a_joined_run_stays_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = framing.KINDS[Publish]
    assert kind.joining is not None
    few = replace(kind, joining=replace(kind.joining, most=5))
    monkeypatch.setitem(framing.KINDS, Publish, few)
    lengths = [len(m.run) for m in gather([Publish(run(n, 2)) for n in range(1, 13, 2)])]
    assert lengths == [4, 4, 4]
    lengths = [len(m.run) for m in gather([Publish(run(n)) for n in range(1, 7)], 6)]
    assert max(lengths) < 4


messages = st.one_of(
    st.builds(
        lambda first, count, source: Publish(run(first, count, source)),
        st.integers(1, 9),
        st.integers(1, 3),
        st.sampled_from([A, B]),
    ),
    st.builds(
        lambda first, size: PublishAcknowledged(first, first + size), *[st.integers(0, 3)] * 2
    ),
    st.just(RecoveryFlag(True)),
)


def singles(message: Any) -> list[Any]:
    """Return the statements of a message, in turn."""
    if isinstance(message, Publish):
        return [(message.run.source, *one) for one in contents(message)]
    if isinstance(message, PublishAcknowledged):
        return [("done", number) for number in range(message.first, message.last + 1)]
    return [message]


@given(st.lists(messages, max_size=12))
def test_whatever_is_joined_the_statements_and_their_order_stay(said: list[Any]) -> None:
    joined = gather(said)
    assert [s for m in joined for s in singles(m)] == [s for m in said for s in singles(m)]
    assert len(joined) <= len(said)
