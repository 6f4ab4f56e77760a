"""Tests of publications as lines: the output of `subscribe` and the input of `publish`."""

import contextlib
import io
import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from brokerd.client.application import Publication
from brokerd.client.events import GapAnnounced
from brokerd.config import SessionParameters
from brokerd.model.identity import SourceId
from brokerd.model.predicate import EVERYTHING
from brokerd.runtime.streams import dial_tcp
from pubsubctl.commands.publish import _read_lines
from pubsubctl.commands.subscribe import _Subscribing
from pubsubctl.deployment.client_access import FailedAttempts
from pubsubctl.deployment.publication_lines import (
    LONGEST_LINE,
    PublicationReader,
    attributes_of,
    delivery_to_mapping,
    describe_delivery,
    describe_source,
    gap_to_mapping,
    read_publication,
)
from pubsubctl.errors import Unreachable, UserError
from tests.helpers.virtual_time import in_virtual_time
from tests.pubsubctl.conftest import Call

SOURCE = SourceId(2, 7, 1)
SCALARS = (
    st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
)


@given(st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True), SCALARS), st.binary())
def test_a_printed_delivery_is_read_as_the_same_publication(
    attributes: dict[str, str | int | float | bool], payload: bytes
) -> None:
    line = json.dumps(delivery_to_mapping(Publication(SOURCE, 4, attributes, payload, (1,))))
    again, content = read_publication(line.encode(), 1)
    assert (again, content) == (attributes, payload)
    assert [*map(type, again.values())] == [*map(type, attributes.values())]


def test_a_redelivered_publication_is_marked() -> None:
    publication = Publication(SOURCE, 4, {"kind": "order"}, b"\xff", (1,), redelivered=True)
    assert delivery_to_mapping(publication)["redelivered"] is True
    brokers = ("b1", "b2", "s3")
    line = describe_delivery(publication, brokers)
    assert line == "s3/7:1:4 {kind='order'} <1 bytes> (redelivered)", "as `why` reads it"
    assert describe_delivery(publication, ()).startswith("2/7:1:4 "), "a broker without a name"


@pytest.mark.parametrize(
    "line, fault",
    [
        (b"{", "no JSON (column 2:"),
        (b"[" * 100_000, "JSON that is nested too deeply"),
        (b"3", "3; a JSON object"),
        (b"\xff", "not UTF-8 (byte 0)"),
        (b"{}", "attributes = None; an object of names and values"),
        (b'{"atributes": {}}', "unknown key 'atributes'; did you mean 'attributes'?"),
        (b'{"attributes": {"a": [1]}}', "attribute 'a': a value of type list"),
        (b'{"attributes": {"a": NaN}}', "NaN is no value"),
        (b'{"attributes": {"a": 1e400}}', "'1e400' needs more than 64 bits"),
        (b'{"attributes": {"a": 9223372036854775808}}', "64 bits"),
        (b'{"attributes": {"a": 1}, "payload": 3}', "payload = 3; text"),
        (b'{"attributes": {"a": 1}, "payload_base64": "?"}', "payload_base64 = '?'; Base64"),
        (b'{"attributes": {}, "payload": "a", "payload_base64": "YQ=="}', "give either"),
        (b" " * (LONGEST_LINE + 1), f"more than {LONGEST_LINE} bytes"),
    ],
    ids=range(14),
)
def test_a_line_that_cannot_be_published_is_refused_by_its_number(line: bytes, fault: str) -> None:
    with pytest.raises(UserError) as refused:
        read_publication(line, 12)
    assert str(refused.value).startswith("standard input, line 12: ")
    assert fault in str(refused.value)


def test_a_printed_gap_is_not_published() -> None:
    gap = gap_to_mapping(GapAnnounced(1, SOURCE, 4, 9, "lost state"))
    assert (gap["first"], gap["last"], gap["reason"]) == (4, 9, "lost state")
    with pytest.raises(UserError, match="a gap cannot be published"):
        read_publication(json.dumps(gap).encode(), 1)


def test_a_word_is_a_topic_and_everything_else_names_attributes() -> None:
    assert attributes_of("news") is None
    assert attributes_of("kind=order") == {"kind": "order"}
    assert attributes_of(' {"kind": "order"}') == {"kind": "order"}
    with pytest.raises(UserError, match="a topic, or name=value"):
        attributes_of(" ")
    with pytest.raises(UserError, match="64"):
        attributes_of(",".join(f"a{number}=1" for number in range(65)))


LINES = (
    b'{"attributes": {"a": 1}}\n\n \n{"attributes": {"a": 2}, "payload": "x"}\r\n{"attributes": {}}'
)


@pytest.mark.parametrize("size", [1, 2, 25, 1_000])
def test_lines_are_read_from_parts_of_any_size(size: int) -> None:
    for text in (LINES, LINES + b"\n"):
        reader = PublicationReader()
        parts = [text[start : start + size] for start in range(0, len(text), size)]
        found = [each for part in (*parts, b"") for each in reader.read(part)]
        assert found == [({"a": 1}, b""), ({"a": 2}, b"x"), ({}, b"")]


def test_a_mistake_in_a_part_is_named_by_its_line() -> None:
    reader = PublicationReader()
    for part, fault in ((LINES + b"}\n", "line 5: no JSON"), (b"\n3\n", "line 7: 3; a JSON")):
        with pytest.raises(UserError, match=fault):
            [*reader.read(part)]
    with pytest.raises(UserError, match="line 8: more than"):
        [*reader.read(b" " * (LONGEST_LINE + 1))]


class SharedInput(io.RawIOBase):
    """An input that refuses a reader that keeps the lock of the buffer meanwhile."""

    def __init__(self) -> None:
        self.buffer = io.BufferedReader(self)
        self._reads = 0

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int | None:
        self._reads += 1
        if self._reads == 1:
            self.buffer.peek()  # RuntimeError: a reentrant call
        if self._reads == 2:
            return None  # nothing has arrived yet
        target[: len(LINES)] = LINES
        return len(LINES) if self._reads == 3 else 0


def test_standard_input_is_read_without_the_lock_of_its_buffer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python aborts at its end if a thread that cannot be stopped has the lock."""
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=SharedInput().buffer))
    monkeypatch.setattr("pubsubctl.commands.publish._PAUSE_S", 0)

    async def read() -> int:
        return len([each async for each in _read_lines()])

    assert trio.run(read) == 3


@pytest.mark.parametrize(
    "line, fault",
    [
        (("publish", "kind=order", "--rate", "0/s"), "--rate 0/s: a rate is more than nothing"),
        (("publish", "kind=order", "--rate", "5"), "--rate 5: a rate has a number and a period"),
        (("publish", "kind=order", "--rate", "fast"), "--rate fast: a rate has a number and a"),
        (("publish", "kind=order", "--timeout", "0s"), "--timeout 0s: more than 0"),
        (("publish", "-", "text"), "a line on standard input has its own payload"),
        (("publish", "-", "--count", "2"), "and no --count"),
        (("publish", "a=1", "x", "--payload-file", "y"), "either a payload or --payload-file"),
        (("publish", "a=1", "--payload-file", "y"), "--payload-file y: no such file"),
        (("publish", "a=1", "--name", "a b"), "client 'a b': 1 to 64 letters"),
        (("subscribe", "kind = order"), "predicate, character 8: expected a number"),
        (("subscribe", "true", "--durable"), "a durable subscription needs a --name"),
        (("subscribe", "true", "--timeout", "soon"), "--timeout = 'soon': a duration has a number"),
        (("--dry-run", "publish", "a=1"), "`publish` has no --dry-run"),
    ],
)
def test_a_mistake_is_refused_before_anything_is_reached(
    call: Call, line: tuple[str, ...], fault: str
) -> None:
    answer = call(*line)
    assert answer.status == 2, answer.err
    assert fault in answer.err


def test_clients_need_a_deployment(call: Call) -> None:
    for line in (("publish", "a=1"), ("subscribe", "true")):
        answer = call(*line)
        assert (answer.status, "nothing is deployed" in answer.err) == (4, True)


class SilentClient:
    """A client whose broker answers late, if at all."""

    def __init__(self, answers_after_s: float) -> None:
        self._at_s = trio.current_time() + answers_after_s

    async def wait_attached(self) -> None:
        """Wait for the answer."""
        await trio.sleep_until(self._at_s)


@in_virtual_time
async def test_a_broker_that_does_not_answer_is_named_once() -> None:
    said: list[str] = []
    console: Any = SimpleNamespace(warn=said.append)
    quick: Any = SilentClient(2)
    await FailedAttempts(console, ["b1:1"]).wait_attached(quick)
    assert said == []
    silent: Any = SilentClient(9)
    await FailedAttempts(console, ["b1:1", "b2:2"]).wait_attached(silent)
    assert said == ["b1:1, b2:2: no answer for 3 s; it keeps on trying"]
    refused = FailedAttempts(console, ["b3:3"])
    refused.on_session("failed", {"address": "b3:3", "reason": "connection refused"})
    late: Any = SilentClient(9)
    await refused.wait_attached(late)
    assert said[1:] == ["b3:3: connection refused; it keeps on trying"]


async def refuse_connection(_: str) -> trio.abc.Stream:
    raise OSError("connection refused")


async def dial_frozen_broker(_: str) -> trio.abc.Stream:
    end, _ = trio.testing.memory_stream_pair()
    return end


UNREACHED = {
    "refused": (refuse_connection, "b1:1: connection refused"),
    "frozen": (dial_frozen_broker, "b1:1: no answer"),
}


@pytest.mark.parametrize("case", UNREACHED)
def test_a_subscriber_without_a_session_at_its_end_has_reached_no_broker(case: str) -> None:
    """Silence of a broker is not taken for a lack of publications, with or without a count."""
    dial, cause = UNREACHED[case]
    access: Any = SimpleNamespace(
        certificate=lambda _: contextlib.nullcontext(),
        dialling=lambda _: contextlib.nullcontext(dial),
        identity="d",
        session=SessionParameters(),
    )
    call: Any = SimpleNamespace(console=SimpleNamespace(warn=lambda _: None))
    for is_durable in (False, True):
        work = _Subscribing(call, EVERYTHING, None, 5, "b1", ("b1",), is_durable, ends=False)
        with pytest.raises(Exception, match=cause) as raised:
            trio.run(
                work.run, access, "c", ["b1:1"], clock=trio.testing.MockClock(autojump_threshold=0)
            )
        assert type(raised.value) is Unreachable


def test_a_refused_connection_is_reported_in_words() -> None:
    with pytest.raises(OSError, match=r"^connection refused$"):
        trio.run(dial_tcp, "127.0.0.1:1")


@pytest.mark.parametrize(
    "broker, name", [(0, "a"), (1, "b"), (2, "2"), (-1, "-1"), (1 << 40, str(1 << 40))]
)
def test_a_source_of_an_unknown_broker_has_its_number(broker: int, name: str) -> None:
    assert describe_source((broker, 3, 1), ("a", "b")) == f"{name}/3:1"


def test_a_line_may_be_as_long_as_the_limit() -> None:
    line = b'{"attributes": {}, "payload": "x"}'
    padded = line + b" " * (LONGEST_LINE - len(line))
    assert read_publication(padded, 1) == read_publication(line, 1)
    with pytest.raises(UserError, match=f"more than {LONGEST_LINE} bytes"):
        read_publication(padded + b" ", 1)
