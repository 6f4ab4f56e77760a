"""Tests of closed channels, which are freed by reference counts, not by the collector."""

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import paramiko
import pytest

from pubsubctl.hosts.ssh.transport import _OrderedChannels


class _Wire:
    """A transport that records messages, and forgets channels."""

    def __init__(self) -> None:
        self.sent: list[int] = []

    def _send_user_message(self, message: paramiko.Message) -> None:
        self.sent.append(message.asbytes()[0])

    def _unlink_channel(self, number: int) -> None:
        self.unlinked = number


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """Disable the garbage collector."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _opened() -> tuple[paramiko.Channel, _Wire, _OrderedChannels]:
    channel, wire, channels = paramiko.Channel(7), _Wire(), _OrderedChannels()
    channels.put(7, channel)
    channel.transport, channel.remote_chanid, channel.active = wire, 0, True  # type: ignore[assignment]
    return channel, wire, channels


def _closed_here(channel: Any) -> None:
    channel.close()


def _closed_there(channel: Any) -> None:
    channel._handle_close(paramiko.Message())


def _closed_after_sending(channel: Any) -> None:
    with channel._sending():
        channel.close()


@pytest.mark.parametrize("closing", [_closed_here, _closed_there, _closed_after_sending])
def test_a_closed_channel_lives_no_longer_than_its_last_name(closing: Any) -> None:
    # One that a cycle keeps is closed again by the collector, in the middle of whatever runs,
    # and waits for ever where that holds the lock of all channels.
    channel, wire, channels = _opened()
    closing(channel)
    assert wire.sent, "nothing was said to the other side"
    gone = weakref.ref(channel)
    del channel
    assert gone() is None
    assert channels.get(7) is None
