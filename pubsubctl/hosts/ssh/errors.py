"""Reasons for a failed connection to a host, with remedies."""

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
