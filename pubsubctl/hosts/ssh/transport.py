"""paramiko's transport, with channels that end in order.

In paramiko, a thread that sends composes its message under the channel's lock and sends it
after that. When the other side closes the channel in between, the thread of the transport sends
its own close first, and what follows names a channel that is no more. OpenSSH answers that by
ending the whole connection, with everything else that goes on over it.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import paramiko
from paramiko.common import MSG_CHANNEL_CLOSE
from paramiko.transport import ChannelMap


class OrderedTransport(paramiko.Transport):
    """A transport that says that a channel is closed only when nobody sends on it any more."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._channels = _OrderedChannels()
        self._channel_handler_table = {
            **self._channel_handler_table,  # type: ignore[has-type]
            MSG_CHANNEL_CLOSE: _OrderedChannel._handle_close,
        }


class _OrderedChannels(ChannelMap):
    """Makes every channel an ordered one before the other side can know of it."""

    def put(self, chanid: int, chan: paramiko.Channel) -> None:
        chan.__class__ = _OrderedChannel
        assert isinstance(chan, _OrderedChannel), chan
        chan.begin()
        super().put(chanid, chan)


class _OrderedChannel(paramiko.Channel):
    """A channel whose close waits for messages that are being sent, without blocking."""

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
                raise OSError("Socket is closed")  # as paramiko says it
            return super()._send(s, m)  # type: ignore[misc, no-any-return]

    def _handle_close(self, m: paramiko.Message) -> None:
        handle = super()._handle_close  # type: ignore[misc]
        self._close_after_senders(lambda: handle(m))

    @contextmanager
    def _sending(self) -> Iterator[bool]:
        """Whether the channel may be sent on; if so, it stays open until the block's end."""
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
        with self.lock:  # who waits for room to send gives up
            self.eof_sent = True
            self.out_buffer_cv.notify_all()

    def _close_now(self) -> None:
        """Carry out what was asked for, unless somebody sends still.

        Nothing of it is kept: it names this channel, which would then live until the collector of
        garbage comes by, and close once more in the middle of whatever runs then.
        """
        while True:
            with self._guard:
                if self._senders or not self._closings:
                    return
                closing = self._closings.pop(0)
            closing()
