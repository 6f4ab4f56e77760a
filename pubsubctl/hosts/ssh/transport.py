"""paramiko's transport, with channels that close in order.

In paramiko, a sending thread composes a message under the channel's lock and sends the message
after the release of the lock. If the other side closes the channel in between, the transport's
thread sends its own close first, and the message names a closed channel. OpenSSH then ends the
whole connection with all other channels.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import paramiko
from paramiko.common import MSG_CHANNEL_CLOSE
from paramiko.transport import ChannelMap


class OrderedTransport(paramiko.Transport):
    """A transport that announces a closed channel only after all senders have finished."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._channels = _OrderedChannels()
        self._channel_handler_table = {
            **self._channel_handler_table,  # type: ignore[has-type]
            MSG_CHANNEL_CLOSE: _OrderedChannel._handle_close,
        }


class _OrderedChannels(ChannelMap):
    """A channel map that makes every channel ordered before the other side can use the channel."""

    def put(self, chanid: int, chan: paramiko.Channel) -> None:
        chan.__class__ = _OrderedChannel
        assert isinstance(chan, _OrderedChannel), chan
        chan.begin()
        super().put(chanid, chan)


class _OrderedChannel(paramiko.Channel):
    """A channel that closes after the messages in flight, without blocking."""

    def begin(self) -> None:
        self._guard = threading.Lock()
        self._senders = 0
        self._is_closing = False
        self._closings: list[Callable[[], None]] = []

    def shutdown(self, how: int) -> None:
        with self._sending() as is_open:
            if is_open:
                super().shutdown(how)

    def close(self) -> None:
        self._close_after_senders(super().close)

    def _send(self, s: bytes, m: paramiko.Message) -> int:
        with self._sending() as is_open:
            if not is_open:
                raise OSError("Socket is closed")  # paramiko's own text
            return super()._send(s, m)  # type: ignore[misc, no-any-return]

    def _handle_close(self, m: paramiko.Message) -> None:
        handle = super()._handle_close  # type: ignore[misc]
        self._close_after_senders(lambda: handle(m))

    @contextmanager
    def _sending(self) -> Iterator[bool]:
        """Yield True if the channel may be sent on; an open channel stays open in the block."""
        with self._guard:
            is_open = not self._is_closing
            self._senders += 1
        try:
            yield is_open
        finally:
            with self._guard:
                self._senders -= 1
            self._close_now()

    def _close_after_senders(self, closing: Callable[[], None]) -> None:
        with self._guard:
            self._is_closing = True
            self._closings.append(closing)
            is_sending = self._senders > 0
        if not is_sending:
            self._close_now()
            return
        with self.lock:  # releases threads that wait for room to send
            self.eof_sent = True
            self.out_buffer_cv.notify_all()

    def _close_now(self) -> None:
        """Run the requested closings, unless a thread is still sending.

        The closings are not stored: a stored closing refers to this channel, which would live until
        the next garbage collection, and close once more at an arbitrary time.
        """
        while True:
            with self._guard:
                if self._senders or not self._closings:
                    return
                closing = self._closings.pop(0)
            closing()
