"""Why a host is not spoken to, and what to do about it."""

from collections.abc import Sequence

from pubsubctl.errors import Unreachable


class ConnectionFailed(Unreachable):
    """There is no connection to a host.

    Attributes:
        host: its name in the inventory.
        reason: what happened.
        remedy: what may help; "" when nothing is known.
    """

    def __init__(self, host: str, reason: str, remedy: str = "") -> None:
        self.host = host
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"{host}: {reason}" + (f"; {remedy}" if remedy else ""))


class ConnectionLost(ConnectionFailed):
    """A connection broke in the middle: what was being done may be done, or not."""


class LoginRefused(ConnectionFailed):
    """The host lets this user in with none of the keys."""


class HostKeyRefused(ConnectionFailed):
    """The key with which a host answered is not one that the inventory knows.

    Nothing was sent to it but the handshake; no login was tried.

    Attributes:
        fingerprint: of the key it showed, `SHA256:…`.
    """

    def __init__(self, host: str, reason: str, remedy: str, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        super().__init__(host, reason, remedy)


class UnknownHostKey(HostKeyRefused):
    """The inventory knows no key of this host yet."""


class ChangedHostKey(HostKeyRefused):
    """The inventory knows another key of this host, or knows this one as revoked.

    Attributes:
        lines: where in the file.
    """

    def __init__(
        self, host: str, reason: str, remedy: str, fingerprint: str, lines: Sequence[int]
    ) -> None:
        self.lines = tuple(lines)
        super().__init__(host, reason, remedy, fingerprint)
