"""Tests of memory: only growth is followed by a release to the kernel; and of private memory."""

from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

from brokerd.runtime.memory import GROWTH_BYTES, FreeMemory, private_bytes, resident_bytes
from tests.helpers.descriptors import no_free_descriptors


def test_free_memory_is_returned_only_after_growth() -> None:
    given_back: list[int] = []
    memory = FreeMemory(given_back.append)
    assert memory.look()
    assert not given_back

    # New pages are mapped, because freed pages could be reused without growth.
    grown = mmap(-1, 2 * GROWTH_BYTES)
    grown.write(b"x" * (2 * GROWTH_BYTES))
    before = resident_bytes() or 0
    assert (memory.look() or 0) >= before - GROWTH_BYTES // 8
    assert given_back == [0]
    memory.look()  # it has not grown since
    assert given_back == [0]
    grown.close()


def test_private_memory_grows_with_private_pages() -> None:
    before = private_bytes()
    assert 0 < before <= (resident_bytes() or 0)
    with mmap(-1, GROWTH_BYTES, flags=MAP_PRIVATE | MAP_ANONYMOUS) as grown:
        grown.write(b"x" * GROWTH_BYTES)
        assert private_bytes() >= before + GROWTH_BYTES // 2


def test_memory_that_cannot_be_read_is_none_and_read_again_later() -> None:
    memory = FreeMemory(lambda _size: None)
    with no_free_descriptors():
        assert resident_bytes() is None
        assert memory.look() is None
        born = FreeMemory(lambda _size: None)
    assert memory.look()
    assert born.look()
