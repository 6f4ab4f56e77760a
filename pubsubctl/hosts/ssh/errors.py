"""Failures of connections to hosts: of one line, and of a host, with remedies."""

import os
import socket
from collections.abc import Sequence

from pubsubctl.errors import Unreachable


class ConnectionFailed(Unreachable):
    """A failed connection to a host.

    Attributes:
        host: the host's name in the inventory.
        reason: the cause of the failure.
        remedy: a possible remedy; "" if none is available.
    """

    def __init__(self, host: str, reason: str, remedy: str = "") -> None:
        self.host = host
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"{host}: {reason}" + (f"; {remedy}" if remedy else ""))


class ConnectionLost(ConnectionFailed):
    """A connection broke during an operation, which may have been carried out or not."""


class LoginRefused(ConnectionFailed):
    """The host accepts none of the keys for this user."""


class HostKeyRefused(ConnectionFailed):
    """A host key is not in the inventory's key file.

    The host received only the handshake; no login was tried.

    Attributes:
        fingerprint: the fingerprint of the host's key, `SHA256:…`.
    """

    def __init__(self, host: str, reason: str, remedy: str, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        super().__init__(host, reason, remedy)


class UnknownHostKey(HostKeyRefused):
    """The inventory contains no key of this host yet."""


class ChangedHostKey(HostKeyRefused):
    """The inventory contains another key of this host, or this key as revoked.

    Attributes:
        lines: the line numbers in the file.
    """

    def __init__(
        self, host: str, reason: str, remedy: str, fingerprint: str, lines: Sequence[int]
    ) -> None:
        self.lines = tuple(lines)
        super().__init__(host, reason, remedy, fingerprint)


class LineError(Exception):
    """An operation failed; the text describes the failure without the host's name."""


class LineLoss(LineError):
    """The connection is lost, or was never established."""


class NotBegun(LineError):
    """No session was opened: nothing of a command was sent."""


class LineRefusal(LineError):
    """The other side is there and will not."""


class Garbled(LineError):
    """The login of the host prints a text into file transfers; the text of the error."""


class AuthenticationRefused(LineError):
    """The server accepts none of the keys."""


def describe_error(error: BaseException) -> str:
    """Return the meaning of a library's exception, in words."""
    if isinstance(error, BaseExceptionGroup):
        return describe_error(error.exceptions[0])
    if isinstance(error, EOFError) or "protocol banner" in str(error):
        return "the other side hung up during the handshake"
    if isinstance(error, OSError):
        inner = error.__cause__
        if isinstance(inner, OSError | BaseExceptionGroup):
            return describe_error(inner)
        if error.errno and not isinstance(error, socket.gaierror):
            return os.strerror(error.errno).lower()  # the text may repeat the place
        return (error.strerror or str(error) or type(error).__name__).lower()
    text = str(error).strip().rstrip(".") or type(error).__name__
    return text[:1].lower() + text[1:]
