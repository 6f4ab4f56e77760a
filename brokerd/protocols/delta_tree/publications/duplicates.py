"""Duplicate detection by source: what is not above the highest sequence received is a duplicate.

First copies of one source reach every broker in order (the argument is in PROTOCOL.md), so
one number per source tells a first copy from another one. Whatever a broker remembers dies with
it: a table that outlived the queue would call publications duplicates that were lost with the
queue.

Paper: [DFT11] §VII lines 676-688, the simple scheme. Deviates: it is the default; the paper's
vectors are in `as_published/vectors.py`.
"""

from brokerd.model.identity import BrokerNumber, SourceId


class SourceSequences:
    """Per source, the highest sequence received, and the highest known to be handed out.

    Attributes:
        last: per source, the highest sequence received.
        paths: source broker → path from there to here.
    """

    def __init__(self, broker: BrokerNumber) -> None:
        self._broker = broker
        self.last: dict[SourceId, int] = {}
        self._handed_out: dict[SourceId, int] = {}
        self.paths: dict[BrokerNumber, tuple[BrokerNumber, ...]] = {}

    def received(self, source: SourceId) -> int:
        """The highest sequence received of `source`."""
        return self.last.get(source, 0)

    def receive(self, source: SourceId, last: int, path: tuple[BrokerNumber, ...]) -> None:
        """Publications of `source` up to `last` have been received, which came along `path`."""
        self.paths[source.broker] = path
        if last > self.last.get(source, 0):
            self.last[source] = last
        if source.broker == self._broker:
            self.hand_out(source, last)

    def hand_out(self, source: SourceId, sequence: int) -> None:
        """A local publisher has used the numbers up to `sequence`, received here or not."""
        if sequence > self._handed_out.get(source, 0):
            self._handed_out[source] = sequence

    def handed_out(self) -> dict[SourceId, int]:
        """Per local source, the highest sequence it is known to have used."""
        return self._handed_out

    def all_received(self) -> dict[SourceId, int]:
        """Per source, the highest sequence received."""
        return self.last
