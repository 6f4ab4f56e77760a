"""Stories about Ctrl-C while Spark works: the block ends with KeyboardInterrupt at any moment."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from pubsubctl.commands.app import _errors_of
from pubsubctl.console.console import Console
from pubsubctl.console.invocation import Invocation
from pubsubctl.errors import INTERNAL_ERROR, Interrupted
from results.checker.spark import interruptible


@pytest.fixture(autouse=True)
def default_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def lost_in_a_finalizer() -> None:
    with suppress(KeyboardInterrupt):
        interrupt()


def lost_before_an_error() -> None:
    lost_in_a_finalizer()
    raise OSError("an error while sending to Java")


def replaced_by_a_cleanup() -> None:
    try:
        interrupt()
    finally:
        raise OSError("no answer from Java")


def repeated() -> None:
    try:
        interrupt()
    finally:
        interrupt()
        interrupt()


MOMENTS: list[Callable[[], None]] = [
    *(interrupt, lost_in_a_finalizer, lost_before_an_error, replaced_by_a_cleanup, repeated)
]


def test_an_interrupt_at_any_moment_ends_the_block_as_an_interrupt() -> None:
    for work in MOMENTS:
        ended: list[str] = []
        with pytest.raises(KeyboardInterrupt), interruptible(lambda to=ended: to.append("java")):
            work()
        assert ended == ["java"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_block_without_an_interrupt_keeps_its_result_and_its_error() -> None:
    ended: list[str] = []
    with interruptible(lambda: ended.append("java")):
        pass
    with pytest.raises(OSError, match="full"), interruptible(lambda: ended.append("java")):
        raise OSError("full")
    assert ended == []


def test_other_threads_and_other_handlers_are_left_alone() -> None:
    found: list[object] = []

    def work() -> None:
        with interruptible(lambda: None):
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    work()
    assert found == [signal.default_int_handler, signal.SIG_IGN]


def test_an_error_of_a_cleanup_after_an_interrupt_is_reported_as_the_interrupt() -> None:
    call = Invocation(console=Console())
    with pytest.raises(OSError, match="no answer") as caught:
        replaced_by_a_cleanup()
    (reported,) = _errors_of(call, caught.value)
    assert isinstance(reported, Interrupted)
    (bug,) = _errors_of(call, RuntimeError("of another kind"))
    assert bug.exit_status == INTERNAL_ERROR
