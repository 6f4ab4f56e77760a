"""The publications of a client that its broker has not acknowledged."""

from collections.abc import Sequence
from dataclasses import replace

from brokerd.client.events import PublicationsDone
from brokerd.client.state import ClientState, Revision
from brokerd.client.window import (
    Singles,
    Window,
    merge_short,
    select_used_attributes,
    split_by_size,
)
from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import Publish
from brokerd.model.identity import SourceId
from brokerd.model.publication import Buffer, PublicationRun

_NOBODY = SourceId(0, 0, 0)


class OutgoingPublications:
    """The unacknowledged publications of one client, numbered from 1 for each source.

    Publications are kept until the broker acknowledges them. After each attachment all are sent
    again, in order.

    Args:
        revision: counts changes that must survive a restart.

    Attributes:
        source: source of the publications; None until the first attachment.
        next_sequence: the number of the next publication.
        highest_sent: the last number that was sent, by this process or perhaps an earlier one.
        resubmitted: number of publications sent more than once.
    """

    def __init__(self, revision: Revision) -> None:
        self.source: SourceId | None = None
        self.next_sequence = 1
        self.resubmitted = 0
        self._revision = revision
        self.highest_sent = 0
        self._window = Window()
        self._unsent: list[PublicationRun] = []
        self._singles = Singles()

    def __len__(self) -> int:
        return self._window.publications + self.next_sequence - self._oldest_unsent()

    @property
    def oldest(self) -> int:
        """The lowest unacknowledged number; the next number if there is none."""
        return self._window.first() or self._oldest_unsent()

    # ------------------------------------------------------------ the application

    def publish(self, blob: bytes, payload: Buffer) -> int:
        """Take one publication with encoded attributes; return its number."""
        self._singles.add(blob, payload)
        self.next_sequence += 1
        self._revision.current += 1
        return self.next_sequence - 1

    def publish_many(
        self,
        attribute_table: Sequence[bytes],
        attribute_index: Sequence[int],
        payload_lengths: int | tuple[int, ...],
        payload: Buffer,
    ) -> range:
        """Take consecutive publications; return their numbers.

        Args:
            attribute_table: distinct encoded attribute maps; not all need be used.
            attribute_index: per publication, its place in the table; `bytes` is the fast kind.
            payload_lengths: bytes per payload, or one length for all.
            payload: all payloads, one after the other; must not change afterwards.
        """
        count = len(attribute_index)
        size = payload_lengths * count if isinstance(payload_lengths, int) else sum(payload_lengths)
        assert count, "nothing to publish"
        assert size == len(payload), f"{count} payloads of {size} bytes: {len(payload)}"
        self._flush_singles()
        table, index = select_used_attributes(attribute_table, attribute_index)
        first = self.next_sequence
        self.next_sequence += count
        sequences = range(first, first + count)
        source = self.source or _NOBODY
        pieces = (payload,) if size else ()
        run = PublicationRun(source, sequences, table, index, payload_lengths, pieces)
        self._unsent.extend(split_by_size(run))
        self._revision.current += 1
        return sequences

    # ------------------------------------------------------------ the broker

    def assign(self, source: SourceId) -> None:
        """Set the source that the broker has assigned to the client."""
        self._flush_singles()
        self._unsent = [replace(run, source=source) for run in self._unsent]
        self.source = source
        self._revision.current += 1

    def retransmissions(self) -> list[Publish]:
        """Return all publications that were sent before, for a new session."""
        runs = merge_short(self._window.runs())
        self.resubmitted += sum(map(len, runs))
        return [Publish(run) for run in runs]

    def send_new(self) -> list[Publish]:
        """Return the publications that were never sent, once.

        Publications taken one by one since the last call are sent as one run.
        """
        self._flush_singles()
        runs, self._unsent = self._unsent, []
        if runs:
            self.highest_sent = runs[-1].last
        runs = merge_short(runs)
        for run in runs:
            self._window.add(run)
        return [Publish(run) for run in runs]

    def on_acknowledged(self, first: int, last: int) -> list[PublicationsDone]:
        """Release the publications numbered from `first` to `last`.

        Raises:
            RemoteProtocolError: the broker acknowledged publications that were never sent.
        """
        if not 0 < first <= last <= self.highest_sent:
            raise RemoteProtocolError("broker", f"acknowledged {first} to {last}, never sent here")
        done = self._window.remove(first, last)
        if not len(self):
            self._revision.current += 1
        return [PublicationsDone(*each) for each in done]

    def renew(self) -> None:
        """Publish as a new source from now on; every publication is acknowledged."""
        self.source = None
        self.next_sequence = 1
        self.highest_sent = 0

    # ------------------------------------------------------------ keeping

    def runs(self) -> tuple[PublicationRun, ...]:
        """Return all unacknowledged publications, in order."""
        self._flush_singles()
        return (*self._window.runs(), *self._unsent)

    def restore(self, state: ClientState) -> None:
        """Restore the publications of an earlier process."""
        self.source = state.source
        self.next_sequence = state.next_sequence
        if state.source is None:
            self._unsent = list(state.runs)
            return
        self.highest_sent = state.next_sequence - 1
        for run in state.runs:
            self._window.add(run)

    def _oldest_unsent(self) -> int:
        if self._unsent:
            return self._unsent[0].first
        return self.next_sequence - len(self._singles)

    def _flush_singles(self) -> None:
        if self._singles:
            first = self.next_sequence - len(self._singles)
            run = self._singles.run(self.source or _NOBODY, first)
            self._singles = Singles()
            self._unsent.extend(split_by_size(run))
