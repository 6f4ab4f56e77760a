"""Duplicate detection by source: publications up to the highest received number are duplicates.

First copies of a source arrive at every broker in order (the argument is in PROTOCOL.md), so
a number per source distinguishes first copies from others. The table is volatile: a table that
outlived the queue would count publications as duplicates that were lost with the queue.

Paper: [DFT11] §VII lines 676-688, the simple scheme. Deviates: this scheme is the default; the
paper's vectors are in `as_published/vectors.py`.
"""

from brokerd.model.identity import BrokerNumber, SourceId


class SourceSequences:
    """The highest received, and the highest assigned sequence number of every source.

    Attributes:
        last: per source, the highest received sequence number.
        paths: source broker → path from there to here.
    """

    def __init__(self, broker: BrokerNumber) -> None:
        self._broker = broker
        self.last: dict[SourceId, int] = {}
        self._handed_out: dict[SourceId, int] = {}
        self.paths: dict[BrokerNumber, tuple[BrokerNumber, ...]] = {}

    def received(self, source: SourceId) -> int:
        """Return the highest received sequence number of `source`."""
        return self.last.get(source, 0)

    def receive(self, source: SourceId, last: int, path: tuple[BrokerNumber, ...]) -> None:
        """Record the receipt of publications of `source` up to `last`, along `path`."""
        self.paths[source.broker] = path
        if last > self.last.get(source, 0):
            self.last[source] = last
        if source.broker == self._broker:
            self.hand_out(source, last)

    def hand_out(self, source: SourceId, sequence: int) -> None:
        """Record that a local publisher has used the numbers up to `sequence`, received or not."""
        if sequence > self._handed_out.get(source, 0):
            self._handed_out[source] = sequence

    def last_used(self) -> dict[SourceId, int]:
        """Return the highest used sequence number of each local source."""
        return self._handed_out

    def all_received(self) -> dict[SourceId, int]:
        """Return the highest received sequence number of every source."""
        return self.last
