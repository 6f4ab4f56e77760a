"""What consumers may be given twice: subscribers that keep nothing, whose broker keeps a token."""

from dataclasses import dataclass, field

from brokerd.model.identity import ClientId, SourceId
from brokerd.simulator.checks.oracle import InvariantViolated

Publication = tuple[SourceId, int]


@dataclass(slots=True)
class _Consumer:
    """One subscriber.

    Attributes:
        uncommitted: how many publications it has before it commits.
        left: how many may come again.
    """

    uncommitted: int
    left: int = 0
    had: set[Publication] = field(default_factory=set)
    committed: set[Publication] = field(default_factory=set)


class Redeliveries:
    """Rules for consumers, beside those for all subscribers.

    - redelivered unmarked: what an application was given before comes marked;
    - redelivered committed: nothing comes again that its broker has called committed;
    - redelivered often: for each crash of the application only what it leaves uncommitted.

    Attributes:
        count: how many publications came again.
        marked: how many were marked that the application did not have.
    """

    def __init__(self) -> None:
        self.count = self.marked = 0
        self._consumers: dict[ClientId, _Consumer] = {}

    def begin(self, client: ClientId, uncommitted: int) -> None:
        """A consumer begins, or a process after one that has crashed."""
        if client in self._consumers:
            self._consumers[client].left += uncommitted
        else:
            self._consumers[client] = _Consumer(uncommitted)

    def delivered(self, client: ClientId, source: SourceId, sequence: int, *, again: bool) -> None:
        """An application was given a publication, with `again` as one that it may have had."""
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
        """An application was told that this is committed."""
        self._consumers[client].committed.add((source, sequence))
