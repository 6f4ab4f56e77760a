"""The publications of a client that its broker has not acknowledged."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace

from brokerd.client.events import PublicationsDone
from brokerd.client.state import ClientState, Revision
from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import Publish
from brokerd.model.identity import SourceId
from brokerd.model.joined_runs import RunJoiner
from brokerd.model.publication import Buffer, PublicationRun, merge_runs, stretches

RUN_LIMIT_BYTES = 1 << 19
RUN_LIMIT_PUBLICATIONS = 8_192
SHORT_RUN = 32
JOINED_RUNS = 256
"""Number of runs that are joined at once.

As many later runs are left alone, as soon acknowledged.
"""


class Singles:
    """Single publications of the application that wait to become a run."""

    def __init__(self) -> None:
        self._places: dict[bytes, int] = {}
        self._index: list[int] = []
        self._payloads: list[Buffer] = []

    def __len__(self) -> int:
        return len(self._index)

    def add(self, blob: bytes, payload: Buffer) -> None:
        self._index.append(self._places.setdefault(blob, len(self._places)))
        self._payloads.append(payload)

    def run(self, source: SourceId, first: int) -> PublicationRun:
        count = len(self._index)
        lengths = tuple(map(len, self._payloads))
        return PublicationRun(
            source,
            range(first, first + count),
            tuple(self._places),
            bytes(self._index) if len(self._places) <= 256 else tuple(self._index),
            lengths[0] if lengths.count(lengths[0]) == count else lengths,
            tuple(payload for payload in self._payloads if len(payload)),
        )


class Window:
    """Runs that were sent and are not acknowledged, in order of their numbers.

    Short runs that stay are joined, once there are many behind them: single publications would cost
    several times their bytes.
    """

    def __init__(self) -> None:
        self.publications = 0
        self._lasts: list[int] = []
        self._runs: list[PublicationRun] = []
        self._joined = 0
        self._joiner = RunJoiner()

    def first(self) -> int:
        """Return the lowest number held; 0 if there is none."""
        return self._runs[0].first if self._runs else 0

    def runs(self) -> list[PublicationRun]:
        return list(self._runs)

    def add(self, run: PublicationRun) -> None:
        self.publications += len(run)
        self._lasts.append(run.last)
        self._runs.append(run)
        if len(self._runs) - self._joined >= 2 * JOINED_RUNS:
            self._join(self._joined, self._joined + JOINED_RUNS)

    def _join(self, start: int, end: int) -> None:
        fewer = self._joiner.fewer(self._runs[start:end])
        self._runs[start:end] = fewer
        self._lasts[start:end] = [run.last for run in fewer]
        self._joined = start + len(fewer)

    def remove(self, first: int, last: int) -> list[tuple[int, int]]:
        """Release the publications numbered from `first` to `last`; return the released ranges."""
        start = bisect_left(self._lasts, first)
        end = bisect_right(self._lasts, last)
        if end < len(self._runs) and self._runs[end].first <= last:
            end += 1
        kept: list[PublicationRun] = []
        removed: list[tuple[int, int]] = []
        for run in self._runs[start:end]:
            before, rest = run.select_through(first - 1), run.after(first - 1)
            assert rest is not None, f"{run.last} is below {first}"
            inside, after = rest.select_through(last), rest.after(last)
            kept.extend(part for part in (before, after) if part is not None)
            if inside is None:
                continue
            self.publications -= len(inside)
            for stretch in stretches(inside.sequences):
                if removed and removed[-1][1] + 1 == stretch[0]:
                    removed[-1] = (removed[-1][0], stretch[1])
                else:
                    removed.append(stretch)
        self._runs[start:end] = kept
        self._lasts[start:end] = [run.last for run in kept]
        if start < self._joined:
            self._joined = start + len(kept) + max(0, self._joined - end)
        return removed


def select_used_attributes(
    table: Sequence[bytes], index: Sequence[int]
) -> tuple[tuple[bytes, ...], Sequence[int]]:
    """Return the used blobs, in order of first use, and the index into them.

    Raises:
        ValueError: the index exceeds the table.
    """
    used = list(dict.fromkeys(index))
    fits = isinstance(index, bytes) or ({*map(type, used)} == {int} and min(used) >= 0)
    if not fits or max(used) >= len(table):
        raise ValueError(f"an attribute index that is not into a table of {len(table)} blobs")
    if len(used) == len(table) and used == list(range(len(table))):
        return tuple(table), index
    blobs = tuple([table[place] for place in used])
    if isinstance(index, bytes):
        translation = bytearray(256)
        for new, old in enumerate(used):
            translation[old] = new
        return blobs, index.translate(translation)
    places = {old: new for new, old in enumerate(used)}
    moved = [places[place] for place in index]
    return blobs, bytes(moved) if len(blobs) <= 256 else tuple(moved)


def _weight(run: PublicationRun) -> int:
    """Return the approximate size of a run on the wire, in bytes."""
    return run.payload_bytes() + 12 * len(run) + sum(map(len, run.attribute_table))


def split_by_size(run: PublicationRun) -> list[PublicationRun]:
    """Return the run in parts that fit into a frame with room to spare, halved until they do."""
    if len(run) == 1 or (len(run) <= RUN_LIMIT_PUBLICATIONS and _weight(run) <= RUN_LIMIT_BYTES):
        return [run]
    half = len(run) // 2
    return [
        *split_by_size(run.select(range(half))),
        *split_by_size(run.select(range(half, len(run)))),
    ]


def merge_short(runs: list[PublicationRun]) -> list[PublicationRun]:
    """Return the same publications in fewer runs if many are short.

    A run costs as much as a frame.
    """
    if len(runs) < 2 or sum(map(len, runs)) >= SHORT_RUN * len(runs):
        return runs
    merged: list[PublicationRun] = []
    gathered: list[PublicationRun] = []
    publications = weight = 0
    for run in runs:
        size = _weight(run)
        if gathered and (
            publications + len(run) > RUN_LIMIT_PUBLICATIONS or weight + size > RUN_LIMIT_BYTES
        ):
            merged.append(merge_runs(gathered))
            gathered, publications, weight = [], 0, 0
        gathered.append(run)
        publications += len(run)
        weight += size
    merged.append(merge_runs(gathered))
    return merged


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
