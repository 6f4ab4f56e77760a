"""Tests of samples of processes, and of processes without a free file descriptor."""

import errno
import os

import pytest

from brokerd.agent.processes import ProcessIdentity, machine_busy_s, take_sample
from tests.helpers.descriptors import no_free_descriptors


def test_a_sample_without_a_free_descriptor_is_left_out() -> None:
    own = ProcessIdentity.of(os.getpid())
    samples = (own.processor_s, own.busiest_thread, own.cores, own.is_stopped, machine_busy_s)
    with no_free_descriptors():
        assert [take_sample(take) for take in samples] == [None] * 5
    assert None not in [take_sample(take) for take in samples]


def test_a_process_is_not_dead_because_no_descriptor_is_free() -> None:
    own, nobody = ProcessIdentity.of(os.getpid()), ProcessIdentity(2**22 + 1, 1)
    with no_free_descriptors():
        assert own.is_alive()
        assert not nobody.is_alive()


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOMEM, errno.EAGAIN, errno.EIO])
def test_a_sample_that_the_kernel_refuses_is_left_out(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    own = ProcessIdentity.of(os.getpid())
    samples = (own.processor_s, own.busiest_thread, own.cores, own.is_stopped, machine_busy_s)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("builtins.open", refuse)
    assert [take_sample(take) for take in samples] == [None] * 5
    assert own.is_alive()


def test_a_mistake_in_a_sample_is_raised() -> None:
    def take() -> None:
        raise ValueError("no number")

    with pytest.raises(ValueError, match="no number"):
        take_sample(take)
