"""Permitted redeliveries to consumers: subscribers without state, with a token at their broker."""

from dataclasses import dataclass, field

from brokerd.model.identity import ClientId, SourceId
from brokerd.simulator.checks.oracle import InvariantViolated

Publication = tuple[SourceId, int]


@dataclass(slots=True)
class _Consumer:
    """One subscriber.

    Attributes:
        uncommitted: number of publications before a commit.
        left: number of permitted redeliveries.
    """

    uncommitted: int
    left: int = 0
    had: set[Publication] = field(default_factory=set)
    committed: set[Publication] = field(default_factory=set)


class Redeliveries:
    """The rules for consumers, beside the rules for all subscribers.

    - redelivered unmarked: a redelivery is marked;
    - redelivered committed: no publication repeats after the broker reported its commit;
    - redelivered often: each crash of the application repeats at most its uncommitted publications.

    Attributes:
        count: number of redeliveries.
        marked: number of marked publications that the application had not received before.
    """

    def __init__(self) -> None:
        self.count = self.marked = 0
        self._consumers: dict[ClientId, _Consumer] = {}

    def begin(self, client: ClientId, uncommitted: int) -> None:
        """Begin a consumer, or a process after a crashed one."""
        if client in self._consumers:
            self._consumers[client].left += uncommitted
        else:
            self._consumers[client] = _Consumer(uncommitted)

    def delivered(self, client: ClientId, source: SourceId, sequence: int, *, again: bool) -> None:
        """Judge a delivery to an application, with `again` marked as a possible redelivery."""
        consumer, publication = self._consumers[client], (source, sequence)
        what = f"{client} got {tuple(source)} {sequence}"
        if publication not in consumer.had:
            self.marked += again
            consumer.had.add(publication)
            return
        self.count += 1
        consumer.left -= 1
        if publication in consumer.committed:
            raise InvariantViolated("redelivered committed", f"{what} again, and had committed it")
        if not again:
            raise InvariantViolated("redelivered unmarked", f"{what} again, and is not told so")
        if consumer.left < 0:
            most = consumer.uncommitted
            what = f"{what} again, which has had more than {most} for each crash again"
            raise InvariantViolated("redelivered often", what)

    def committed(self, client: ClientId, source: SourceId, sequence: int) -> None:
        """Record that an application was notified of a commit."""
        self._consumers[client].committed.add((source, sequence))
