"""Keyed deadlines."""

from hypothesis import given
from hypothesis import strategies as st

from brokerd.protocols.parts.deadlines import DeadlineQueue


def test_a_deadline_can_be_moved_and_cancelled():
    queue = DeadlineQueue[str]()
    queue.set("a", 10)
    queue.set("b", 20)
    queue.set("a", 30)
    queue.cancel("b")
    queue.cancel("never set")
    assert queue.earliest() == 30
    assert queue.due(29) == []
    assert queue.due(30) == ["a"]
    assert queue.earliest() is None


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.one_of(st.none(), st.integers(0, 20)))),
    st.integers(0, 20),
)
def test_the_queue_equals_a_plain_table(operations, now):
    queue, table = DeadlineQueue[str](), {}
    for serial, (key, at) in enumerate(operations):
        table.pop(key, None)
        if at is None:
            queue.cancel(key)
        else:
            queue.set(key, at)
            table[key] = (at, serial)
    due = sorted((at, serial, key) for key, (at, serial) in table.items() if at <= now)
    assert queue.due(now) == [key for _, _, key in due]
    assert queue.earliest() == min((at for at, _ in table.values() if at > now), default=None)
