"""Tests of objects after a stall, an error, a flood or a cut frame: they equal new objects."""

import struct
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from brokerd.config import SessionParameters
from brokerd.errors import RemoteProtocolError
from brokerd.sessions.failure_detector import (
    FORGOTTEN_NS,
    FailureDetector,
    FaultBackoff,
    check_interval_ns,
)
from brokerd.sessions.link_faults import AbsorbedMessages
from brokerd.sessions.outbox import Outbox
from brokerd.units import SECOND_NS
from brokerd.wire.framing import FrameDecoder

DEFAULTS = SessionParameters()
TICK_NS = check_interval_ns(DEFAULTS)
CALM_NS = 400 * SECOND_NS
"""The time after which the slowest possible detector has returned to its initial state."""
HEARTBEAT = b"beat"


def suspected_after_ns(detector: FailureDetector, now_ns: int) -> int:
    """Return the time until a detector without messages suspects its peer."""
    began_ns = now_ns
    while not detector.check(now_ns):
        now_ns = min(now_ns + TICK_NS, max(detector.due_ns, now_ns + 1))
    return now_ns - began_ns


@given(st.integers(0, 1 << 32))
def test_a_detector_suspects_as_soon_as_a_new_one_whatever_was_before(seed: int) -> None:
    """The episodes are stalls, dispelled suspicions and late heartbeats; then all is calm."""
    random, now_ns = Random(seed), 0
    detector = FailureDetector(DEFAULTS, now_ns)
    for _ in range(random.randrange(1, 12)):
        now_ns += random.choice((TICK_NS, 3 * TICK_NS, DEFAULTS.suspicion_ns, 30 * SECOND_NS))
        detector.check(now_ns)
        if random.random() < 0.5:
            detector.record_life(now_ns)
    end_ns = now_ns + CALM_NS
    while now_ns < end_ns:
        now_ns += TICK_NS
        detector.check(now_ns)
        detector.record_life(now_ns)
    assert detector.allowed_ns - DEFAULTS.suspicion_ns < TICK_NS
    new = FailureDetector(DEFAULTS, now_ns)
    detector.record_life(now_ns)
    difference_ns = suspected_after_ns(detector, now_ns) - suspected_after_ns(new, now_ns)
    assert abs(difference_ns) <= TICK_NS


@given(st.lists(st.integers(0, 60), min_size=1, max_size=30))
def test_errors_that_are_long_ago_cost_no_pause(pauses_s: list[int]) -> None:
    backoff, new, now_ns = FaultBackoff(), FaultBackoff(), 0
    for pause_s in pauses_s:
        now_ns += pause_s * SECOND_NS
        backoff.note(1, now_ns)
    now_ns += FORGOTTEN_NS
    for _ in range(5):
        for each in (backoff, new):
            each.note(1, now_ns)
        assert backoff.remaining_ns(1, now_ns) == new.remaining_ns(1, now_ns)
        now_ns += SECOND_NS


class OutboxEpisodes(RuleBasedStateMachine):
    """An outbox through floods, refusals, partial writes and heartbeats."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox = Outbox(64, HEARTBEAT)
        self.frames: list[bytes] = []

    @rule(size=st.integers(1, 80))
    def add(self, size: int) -> None:
        frame = bytes([len(self.frames) % 256]) * size
        fits = sum(map(len, self.frames)) + size <= 64 or not self.frames
        assert self.outbox.add([frame], size) == fits
        if fits:
            self.frames.append(frame)

    @rule(limit=st.integers(1, 100), beats=st.booleans())
    def write(self, limit: int, beats: bool) -> None:
        if beats:
            self.outbox.beat()
        written = self.outbox.take(limit, 0)
        expected = HEARTBEAT if beats else b""
        size = 0
        while self.frames and (not size or size + len(self.frames[0]) <= limit):
            size += len(self.frames[0])
            expected += self.frames.pop(0)
        assert written == expected
        assert self.outbox.is_writing == bool(written)
        assert self.outbox.last_words(b"bye") == (b"" if written else b"bye")
        self.outbox.is_writing = False

    @invariant()
    def counts_what_waits(self) -> None:
        assert self.outbox.waiting_bytes == sum(map(len, self.frames))
        assert self.outbox.waiting_frames == len(self.frames)


class AbsorbedEpisodes(RuleBasedStateMachine):
    """Absorbed messages, released link by link and absorbed again."""

    def __init__(self) -> None:
        super().__init__()
        self.absorbed: AbsorbedMessages[int, int] = AbsorbedMessages(100)
        self.held: list[tuple[int, int, int]] = []
        self.number = 0

    @rule(owner=st.integers(0, 3), size=st.integers(0, 50))
    def hold(self, owner: int, size: int) -> None:
        self.number += 1
        self.absorbed.hold(owner, self.number, size)
        self.held.append((owner, self.number, size))

    @rule(owner=st.integers(0, 3))
    def release(self, owner: int) -> None:
        gone = [(each, number) for each, number, _ in self.held if each == owner]
        assert self.absorbed.take(lambda each: each == owner) == gone
        self.held = [each for each in self.held if each[0] != owner]

    @invariant()
    def counts_what_is_held(self) -> None:
        held_bytes = sum(size for _, _, size in self.held)
        assert (self.absorbed.held_bytes, self.absorbed.is_full) == (held_bytes, held_bytes >= 100)


TestOutbox = OutboxEpisodes.TestCase
TestAbsorbed = AbsorbedEpisodes.TestCase


def frames_of(decoder: FrameDecoder, chunk: bytes) -> list[tuple[bytes, bytes]]:
    decoder.feed(chunk)
    found = []
    while (frame := decoder.next_frame()) is not None:
        found.append((bytes(frame[0]), bytes(frame[1])))
    return found


@given(
    st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=30)), min_size=1, max_size=6),
    st.lists(st.integers(1, 16), min_size=1, max_size=20),
    st.integers(9, 64),
)
def test_a_decoder_between_frames_is_like_a_new_one(
    sent: list[tuple[bytes, bytes]], cuts: list[int], too_long: int
) -> None:
    """Frames arrive in pieces or whole, and the last frame is too long."""
    decoder = FrameDecoder(48)
    for header, payload in sent:
        stream = struct.pack(">II", len(header) + len(payload) + 4, len(header)) + header + payload
        found = []
        for cut in cuts:
            found += frames_of(decoder, stream[:cut])
            stream = stream[cut:]
        found += frames_of(decoder, stream)
        assert found == [(header, payload)]
        assert not decoder.incomplete
    for each in (decoder, FrameDecoder(48)):
        each.feed(struct.pack(">II", 48 + too_long, 4))
        with pytest.raises(RemoteProtocolError, match=f"a frame of {52 + too_long} bytes"):
            each.next_frame()
