"""The errors of a broker, one class per kind of fault.

Our own faults are assertions. What a peer did wrong is a RemoteProtocolError: its session is
closed and the broker lives. What the person who configured the broker did wrong is a
ConfigError. A StorageCorrupt broker refuses to start, and DiskFailed ends one; so does
MustNotGoOn, where it was decommissioned, is too slow, or has lost what was durable (StateLost).
"""


class BrokerError(Exception):
    """Base of every error a broker raises on purpose."""


class RemoteProtocolError(BrokerError):
    """A peer sent what the protocol does not allow; close its session, keep the broker.

    Attributes:
        peer: who, as far as it is known.
        reason: what was wrong, at most 300 characters, safe to print.
    """

    def __init__(self, peer: object, reason: str) -> None:
        self.peer = peer
        self.reason = reason[:300]
        super().__init__(f"peer {peer}: {self.reason}")


class ConfigError(BrokerError):
    """A configuration value that cannot be used: names the key, the value and what is valid."""


class StorageCorrupt(BrokerError):
    """What is on disk cannot be what this broker wrote; it does not start on it."""


class DiskFailed(BrokerError, OSError):
    """The disk does not do what it should, and is not merely full: the broker ends.

    What was not on disk was acknowledged to nobody.
    """


class MustNotGoOn(BrokerError):
    """A broker that others have given up: decommissioned, or too slow; says why."""


class StateLost(MustNotGoOn):
    """Durable state of a broker is missing; it serves again only if the loss is accepted."""


class ForeignState(StorageCorrupt, MustNotGoOn):
    """A state folder of another deployment, broker or protocol; it stays as it is."""


class ResumeTokenRefused(BrokerError):
    """A resume token that is damaged, or of another protocol or deployment; says which."""


class ControlError(BrokerError):
    """A control request that was refused or could not be carried out.

    Attributes:
        kind: user (ask for something else), busy (somebody else has it), internal (a fault at
            the other end), closed (nobody answers, or the connection ended first).
        text: what was wrong, safe to print.
    """

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        self.text = text
        super().__init__(text)
