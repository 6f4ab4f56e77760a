"""Tests of the outbox: whole frames in order, heartbeats first, a bound, and no half frame."""

from brokerd.sessions.outbox import Outbox
from tests.helpers.delta_tree_bugs import Mutant, plant_mutants


def filled(*frames: bytes, limit: int = 1_000) -> Outbox:
    outbox = Outbox(limit, b"<3")
    for frame in frames:
        outbox.add([frame], len(frame))
    return outbox


def test_a_write_batches_frames_up_to_its_limit_and_at_least_one() -> None:
    outbox = filled(b"aaaa", b"bb", b"cc", b"dd")
    taken = []
    while data := outbox.take(5, now_ns=0):
        outbox.is_writing = False
        taken.append(data)
    assert taken == [b"aaaa", b"bbcc", b"dd"]
    assert outbox.waiting_bytes == 0


def test_a_heartbeat_is_sent_once_before_all_queued_frames() -> None:
    outbox = filled(b"aa")
    outbox.beat()
    outbox.beat()
    assert outbox.take(100, now_ns=0) == b"<3aa"


def test_a_session_begins_with_its_greeting() -> None:
    """The clock may ask for a heartbeat before the first write of a new session."""
    outbox = Outbox(1_000, b"<3")
    outbox.greet()
    outbox.beat()
    outbox.add([b"hello"], 5)
    assert outbox.take(100, now_ns=0, heartbeats_only=True) == b""
    written = b""
    while data := outbox.take(100, now_ns=0):
        outbox.is_writing = False
        written += data
    assert written == b"hello<3"


def test_only_heartbeats_leave_while_the_link_absorbs() -> None:
    outbox = filled(b"aa")
    outbox.beat()
    assert outbox.take(100, now_ns=0, heartbeats_only=True) == b"<3"
    outbox.is_writing = False
    assert outbox.take(100, now_ns=0, heartbeats_only=True) == b""
    assert outbox.take(100, now_ns=0) == b"aa"


@plant_mutants([Mutant.HEARTBEATS_IN_QUEUE])
def test_mutant_m40_lets_a_heartbeat_wait_behind_the_data() -> None:
    outbox = filled(b"aa")
    outbox.beat()
    assert outbox.take(100, now_ns=0, heartbeats_only=True) == b""


def test_a_frame_above_the_limit_is_refused_without_loss_of_others() -> None:
    outbox = filled(b"aaaa", b"bbbb", limit=10)
    assert not outbox.add([b"cccc"], 4)
    assert outbox.take(100, now_ns=0) == b"aaaabbbb"


def test_a_frame_larger_than_the_bound_passes_when_nothing_else_waits() -> None:
    outbox = filled(limit=3)
    assert outbox.add([b"aaaa"], 4)


@plant_mutants([Mutant.FULL_QUEUE_DROPS_OLDEST])
def test_mutant_m38_drops_the_oldest_instead() -> None:
    outbox = filled(b"aaaa", b"bbbb", limit=10)
    assert outbox.add([b"cccc"], 4)
    assert outbox.take(100, now_ns=0) == b"bbbbcccc"


def test_a_frame_that_is_not_due_delays_the_frames_behind_it() -> None:
    outbox = Outbox(100, b"<3")
    outbox.add([b"late"], 4, due_ns=50)
    outbox.add([b"early"], 5)
    assert outbox.next_due_ns() == 50
    assert outbox.take(100, now_ns=49) == b""
    assert outbox.take(100, now_ns=50) == b"lateearly"
    assert outbox.next_due_ns() is None


def test_last_words_follow_whole_frames_only() -> None:
    outbox = filled(b"aaaa")
    outbox.take(100, now_ns=0)
    assert outbox.last_words(b"bye") == b""
    outbox.is_writing = False
    assert outbox.last_words(b"bye") == b"bye"


@plant_mutants([Mutant.HALF_A_FRAME])
def test_mutant_m39_speaks_into_a_cut_frame() -> None:
    outbox = filled(b"aaaa")
    outbox.take(100, now_ns=0)
    assert outbox.last_words(b"bye") == b"bye"


def test_a_queue_may_be_full_and_not_fuller() -> None:
    outbox = filled(b"aaaa", limit=10)
    assert not outbox.add([b"b" * 7], 7)
    assert outbox.add([b"b" * 6], 6)
    assert not outbox.add([b"c"], 1)
    assert (outbox.waiting_bytes, outbox.waiting_frames) == (10, 2)


def test_a_write_is_as_long_as_its_limit_and_longer_for_a_single_frame_only() -> None:
    outbox = filled(b"aaaaaa", b"bb", b"cc", b"d")
    taken = []
    for _ in range(3):
        taken.append(outbox.take(4, now_ns=0))
        outbox.is_writing = False
    assert taken == [b"aaaaaa", b"bbcc", b"d"]
