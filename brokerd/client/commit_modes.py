"""The commit modes of a client: when its application has consumed an arrival.

`Progress` has one mode, which decides on arrivals between their delivery and their commit:

- "automatic": a request for further deliveries commits the deliveries before;
- "explicit": the application commits publications by `Subscription.commit`;
- "transactional": the application commits all its arrivals together with a token, or the broker
  keeps the positions (`DurableSubscription`, `Consumer`).
"""

from collections.abc import Iterable
from typing import ClassVar, Literal, Protocol

from brokerd.client.commitment import Commitment
from brokerd.model.identity import SourceId

CommitMode = Literal["automatic", "explicit", "transactional"]
"""The name of a commit mode."""


class CommitPolicy(Protocol):
    """The decisions that differ between commit modes.

    Attributes:
        reports_silence: True if silence is an arrival of the application, which commits it.
    """

    reports_silence: ClassVar[bool]

    def deliver(self, serial: int) -> None:
        """Record that all arrivals up to this serial are about to be delivered."""

    def take(self, serial: int, numbers: Iterable[int]) -> None:
        """Record that the application has received all arrivals up to this serial.

        Args:
            numbers: the present subscriptions.
        """

    def skip(self, numbers: Iterable[int]) -> None:
        """Take the last arrival if no earlier arrival waits; the application has no part in it."""

    def commit(self, number: int, source: SourceId, last: int) -> None:
        """Commit the deliveries of a subscription up to a publication that was delivered."""


class AutomaticCommits:
    """Commits of all arrivals that the application has received.

    Args:
        records_deliveries: True if deliveries must be on record after a restart.
    """

    reports_silence: ClassVar[bool] = False

    def __init__(self, commitment: Commitment, *, records_deliveries: bool) -> None:
        self._commitment = commitment
        self._records_deliveries = records_deliveries

    def deliver(self, serial: int) -> None:
        if self._records_deliveries:
            self._commitment.give(serial)

    def take(self, serial: int, numbers: Iterable[int]) -> None:
        self._commitment.take(serial)

    def skip(self, numbers: Iterable[int]) -> None:
        if len(self._commitment) == 1:
            self.take(self._commitment.serial, numbers)

    def commit(self, number: int, source: SourceId, last: int) -> None:
        """See CommitPolicy: the next request of the application commits."""


class ExplicitCommits:
    """Commits by the application, per subscription and source.

    Announcements behind all committed publications are committed at once.
    """

    reports_silence: ClassVar[bool] = False

    def __init__(self, commitment: Commitment) -> None:
        self._commitment = commitment

    def deliver(self, serial: int) -> None:
        self._commitment.give(serial)

    def take(self, serial: int, numbers: Iterable[int]) -> None:
        _take_announcements(self._commitment, serial, numbers)

    def skip(self, numbers: Iterable[int]) -> None:
        if len(self._commitment) == 1:
            self.take(self._commitment.serial, numbers)

    def commit(self, number: int, source: SourceId, last: int) -> None:
        self._commitment.commit(number, source, last)


class TransactionalCommits:
    """Commits of all arrivals together, silence included.

    `Progress.commit_through` and `Progress.commit_consumed` commit; an acknowledged position is in
    a token that the application, or its broker, has kept.
    """

    reports_silence: ClassVar[bool] = True

    def __init__(self, commitment: Commitment) -> None:
        self._commitment = commitment

    def deliver(self, serial: int) -> None:
        self._commitment.give(serial)

    def take(self, serial: int, numbers: Iterable[int]) -> None:
        _take_announcements(self._commitment, serial, numbers)

    def skip(self, numbers: Iterable[int]) -> None:
        self._commitment.release()

    def commit(self, number: int, source: SourceId, last: int) -> None:
        raise AssertionError(f"subscription {number} commits with a token: commit_through")


def policy_of(
    mode: CommitMode, commitment: Commitment, *, records_deliveries: bool
) -> CommitPolicy:
    """Return the policy of a mode; see AutomaticCommits for `records_deliveries`."""
    if mode == "automatic":
        return AutomaticCommits(commitment, records_deliveries=records_deliveries)
    return ExplicitCommits(commitment) if mode == "explicit" else TransactionalCommits(commitment)


def _take_announcements(commitment: Commitment, serial: int, numbers: Iterable[int]) -> None:
    """Record deliveries, and commit the announcements behind all committed publications."""
    commitment.give(serial)
    for number in numbers:
        commitment.commit_announcements(number)
    commitment.release()
