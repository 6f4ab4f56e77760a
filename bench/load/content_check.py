"""Comparison of received runs with the contents that follow from the seed, for whole runs."""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter

from bench.load.content import ContentBlock, SourceContent, content_digest
from brokerd.model.publication import PublicationRun


@dataclass(frozen=True, slots=True)
class RunContent:
    """The content of a received run, compared with the content from the seed.

    Attributes:
        digests: CRC-32 of attribute blob and payload as received, per publication.
        corrupted: positions with a content other than the content from the seed.
        fences: positions of fences.
    """

    digests: "array[int]"
    corrupted: tuple[int, ...] = ()
    fences: tuple[int, ...] = ()


class ContentCheck:
    """Digests of received runs, fast for correct contents.

    Bytes that equal the expected bytes have the expected digest. So the comparison of a whole run
    replaces the digest of every publication. If a run differs anywhere, each digest is computed.
    """

    def __init__(self, blobs: Sequence[bytes], fence_blob: bytes) -> None:
        self._fence_blob = fence_blob
        # Equal sets have the same blob, so a blob stands for the first set with this blob.
        self._place_of_blob: dict[bytes, int] = {}
        for place, blob in enumerate(blobs):
            self._place_of_blob.setdefault(blob, place)

    def examine(self, run: PublicationRun, content: SourceContent | None) -> RunContent:
        """Return the digests of a run, with its fences and corrupted publications.

        `content` is None for a source outside this run, and nothing is compared.
        """
        if content is None:
            digests = [content_digest(blob, payload) for _, blob, payload in run.publications()]
            return RunContent(array("I", digests))
        if run.payload_lengths == content.tables.size_bytes:
            if len(run.sequences) == 1:
                whole = self._examine_one(run, content)
            else:
                whole = self._examine_whole(run, content)
            if whole is not None:
                return RunContent(whole)
        return self._examine_singly(run, content)

    def _examine_one(self, run: PublicationRun, content: SourceContent) -> "array[int] | None":
        """Examine a run of one publication, the usual case at low rates; see `_examine_whole`."""
        sequence = run.sequences[0]
        block = content.block_of(sequence)
        place = sequence - block.first
        tables = content.tables
        if (
            run.attribute_table[run.attribute_index[0]] == _blob(content, block, place)
            and b"".join(run.payload) == tables.payloads[block.payload_numbers[place]]
        ):
            return block.digests[place : place + 1]
        return None

    def _examine_whole(self, run: PublicationRun, content: SourceContent) -> "array[int] | None":
        """Return the digests if the run is exactly as expected, else None."""
        if content.tables.numbered is not None:
            return self._examine_numbered(run, content)
        translation = [self._place_of_blob.get(blob, -1) for blob in run.attribute_table]
        if -1 in translation:
            return None
        digests = array("I")
        places: list[int] | bytes
        payload: list[bytes] = []
        if isinstance(run.sequences, range):
            parts: list[bytes | list[int]] = []
            size = content.tables.size_bytes
            for block, low, high in _stretches(run.sequences, content):
                digests += block.digests[low:high]
                parts.append(block.blob_places[low:high])
                payload.append(content.payload_of(block)[low * size : high * size])
            places = parts[0] if len(parts) == 1 else _joined(parts)
        else:
            places = []
            payloads = content.tables.payloads
            for block, offsets in _offsets(run.sequences, content):
                pick = itemgetter(*offsets, offsets[0])  # two items always make a tuple
                digests.extend(pick(block.digests)[:-1])
                places.extend(pick(block.blob_places)[:-1])
                payload.extend([payloads[n] for n in pick(block.payload_numbers)[:-1]])
        if not _are_same(run.attribute_index, translation, places):
            return None
        return digests if b"".join(payload) == b"".join(run.payload) else None

    def _examine_numbered(self, run: PublicationRun, content: SourceContent) -> "array[int] | None":
        """Examine a run of publications with different blobs; see `_examine_whole`."""
        digests = array("I")
        blobs: list[bytes] = []
        payload: list[bytes] = []
        for block, offsets in _offsets(run.sequences, content):
            pick = itemgetter(*offsets, offsets[0])
            digests.extend(pick(block.digests)[:-1])
            blobs.extend(pick(block.blobs)[:-1])
            payload.extend([content.tables.payloads[n] for n in pick(block.payload_numbers)[:-1]])
        if [run.attribute_table[place] for place in run.attribute_index] != blobs:
            return None
        return digests if b"".join(payload) == b"".join(run.payload) else None

    def _examine_singly(self, run: PublicationRun, content: SourceContent) -> RunContent:
        digests = array("I")
        corrupted, fences = [], []
        for position, (sequence, blob, payload) in enumerate(run.publications()):
            digests.append(content_digest(blob, payload))
            _, payload_number = content.choice(sequence)
            expected_blob = content.blob(sequence)
            if blob == self._fence_blob:
                fences.append(position)
                expected_blob = blob
            if blob != expected_blob or payload != content.tables.payloads[payload_number]:
                corrupted.append(position)
        return RunContent(digests, tuple(corrupted), tuple(fences))


def _blob(content: SourceContent, block: ContentBlock, place: int) -> bytes:
    """Return the expected blob of a publication of a block."""
    return block.blobs[place] if block.blobs else content.tables.blobs[block.sets[place]]


def _stretches(sequences: range, content: SourceContent) -> Iterable[tuple[ContentBlock, int, int]]:
    """Yield the blocks of consecutive sequence numbers, with the range in each block."""
    first, end = sequences[0], sequences[-1] + 1
    while first < end:
        block = content.block_of(first)
        low = first - block.first
        high = min(len(block), end - block.first)
        yield block, low, high
        first = block.first + high


def _offsets(
    sequences: Sequence[int], content: SourceContent
) -> Iterable[tuple[ContentBlock, list[int]]]:
    """Yield the blocks of ascending sequence numbers, with the places in each block."""
    start = 0
    while start < len(sequences):
        block = content.block_of(sequences[start])
        first = block.first
        end = bisect_left(sequences, first + len(block), start)
        yield block, [sequence - first for sequence in sequences[start:end]]
        start = end


def _joined(parts: Sequence[bytes | list[int]]) -> bytes | list[int]:
    if all(isinstance(part, bytes) for part in parts):
        return b"".join(map(bytes, parts))
    return [place for part in parts for place in part]


def _are_same(index: Sequence[int], translation: list[int], places: list[int] | bytes) -> bool:
    """Return True if the blobs in the index of a run are the blobs at `places`."""
    if isinstance(places, bytes) and isinstance(index, bytes):
        return index.translate(bytes(translation).ljust(256, b"\0")) == places
    return [translation[place] for place in index] == list(places)
