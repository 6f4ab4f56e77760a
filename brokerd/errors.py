"""The errors of a broker, one class per kind of fault.

Faults of the program are assertions. The fault of a peer is a RemoteProtocolError: its session is
closed and the broker lives. The fault of the person who configured the broker is a ConfigError. A
broker refuses to start after StorageCorrupt, and DiskFailed ends a broker; so does BrokerMustEnd,
if the broker was decommissioned, is too slow, or has lost durable state (StateLost).
"""


class BrokerError(Exception):
    """Base of every error that a broker raises on purpose."""


class RemoteProtocolError(BrokerError):
    """A peer's violation of the protocol; close its session, keep the broker.

    Attributes:
        peer: the peer, as far as identified.
        reason: the violation, at most 300 characters, safe to print.
    """

    def __init__(self, peer: object, reason: str) -> None:
        self.peer = peer
        self.reason = reason[:300]
        super().__init__(f"peer {peer}: {self.reason}")


def reason_of(error: Exception) -> str:
    """Return the reason for which a connection failed, at most 300 characters."""
    return error.reason if isinstance(error, RemoteProtocolError) else str(error)[:300]


class ConfigError(BrokerError):
    """A configuration value that cannot be used: names the key, the value and the valid values."""


class StorageCorrupt(BrokerError):
    """Data on disk that cannot be data of this broker; the broker does not start."""


_DAMAGED_AT = ": damaged at byte "


class LogDamaged(StorageCorrupt):
    """A log with damage in the middle; everything before the damage is readable.

    Attributes:
        position: byte of the damage in its segment.
    """

    def __init__(self, text: str, position: int) -> None:
        super().__init__(text)
        self.position = position

    def is_named_by(self, cause: str) -> bool:
        """Return True if a recorded cause is of damage at the same place."""
        place = str(self).partition(_DAMAGED_AT)[0] + f"{_DAMAGED_AT}{self.position}"
        return cause == place or cause.startswith(f"{place}:")


class DiskFailed(BrokerError, OSError):
    """A failure of the disk, which is not merely full: the broker ends.

    Data that were not on disk have not been acknowledged.
    """


class BrokerMustEnd(BrokerError):
    """A broker that must end: decommissioned, or too slow; the text states the reason."""


class StateLost(BrokerMustEnd):
    """A loss of durable state; the broker serves again only if the loss is accepted."""


class ForeignState(StorageCorrupt, BrokerMustEnd):
    """A state folder of another deployment, broker or protocol, which stays unchanged."""


class ResumeTokenRefused(BrokerError):
    """A resume token that is damaged, or of another protocol or deployment.

    The text states which.
    """


class ControlError(BrokerError):
    """A control request that was refused or could not be carried out.

    Attributes:
        kind: user (the request is wrong), busy (another process has the resource), internal (a
            fault at the other end), closed (no answer, or the connection ended first).
        text: the fault, safe to print.
    """

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        self.text = text
        super().__init__(text)
