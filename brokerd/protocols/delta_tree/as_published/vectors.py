"""Duplicate detection by vectors of the stamps of 2δ + 1 brokers (`dedupe`, `legitimacy`).

Stamps restart in a broker that restarts, and other brokers still compare them, so vectors go wrong
if a broker of the window restarts between two copies.

Every scheme answers the same question for a whole run: the number up to which its publications
are duplicates. In all schemes first copies follow duplicates.

Paper: [DFT11] §VII lines 688-816.
"""

from typing import Protocol

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer, SourceId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.delta_tree.broker.state import Path, State
from brokerd.protocols.delta_tree.messages import SequenceVector, Stamp
from brokerd.protocols.delta_tree.publications.duplicates import SourceSequences

LONGEST_SPAN = 1 << 40
"""From the first to the last publication of a run; so that stamps never run out."""

HIGHEST_STAMP = 1 << 62


class DuplicateDetection(Protocol):
    """A scheme that separates first copies from duplicates, with its state."""

    def old_until(self, run: PublicationRun, path: Path, vector: SequenceVector | None) -> int:
        """Return the sequence number up to which the run's publications are duplicates.

        Called once per received run: the stamps of other brokers in its vector are recorded.
        """
        ...

    def accept(self, run: PublicationRun, vector: SequenceVector | None) -> SequenceVector | None:
        """Record first copies that are about to be queued; return their stamps from here on."""
        ...


class BySource:
    """Duplicate detection by the highest received sequence number of the source."""

    def __init__(self, sequences: SourceSequences) -> None:
        self._sequences = sequences

    def old_until(self, run: PublicationRun, path: Path, vector: SequenceVector | None) -> int:
        """See DuplicateDetection."""
        return self._sequences.received(run.source)

    def accept(self, run: PublicationRun, vector: SequenceVector | None) -> SequenceVector | None:
        """See DuplicateDetection."""
        return None


class ByVector:
    """Duplicate detection by the highest recorded stamp of every broker of the window.

    Any two copies that bypassed at most δ brokers of the window have a broker in common,
    which has queued the publication once and gave both the same stamp. Publications of clients
    carry no vector; their publishers' own numbers decide.

    Paper: [DFT11] §VII lines 688-816. The update of vectors is derived; the paper's extended
    version with the update is not available.
    """

    def __init__(self, state: State, sequences: SourceSequences) -> None:
        self._state = state
        self._sequences = sequences
        self._window = window(state)
        self._seen: dict[BrokerNumber, Stamp] = {}
        self._queued = 0

    def old_until(self, run: PublicationRun, path: Path, vector: SequenceVector | None) -> int:
        """See DuplicateDetection."""
        if vector is None:
            return self._sequences.received(run.source)
        until = 0
        span = run.last - vector.sequence
        for broker, stamp in zip(path[-2::-1], vector.stamps, strict=False):
            if stamp is None:
                continue
            seen = self._seen.get(broker)
            if seen is not None:
                if seen.incarnation > stamp.incarnation:
                    until = run.last
                elif seen.incarnation == stamp.incarnation:
                    until = max(until, vector.sequence + seen.number - stamp.number)
            highest = Stamp(stamp.incarnation, stamp.number + span)
            if seen is None or highest > seen:
                self._seen[broker] = highest
        return until

    def find_restarted(self, path: Path, vector: SequenceVector) -> list[BrokerNumber]:
        """Return restarted brokers of the vector; this copy may be from before the restart."""
        return [
            broker
            for broker, stamp in zip(path[-2::-1], vector.stamps, strict=False)
            if stamp is not None and self._seen[broker].incarnation > 1
        ]

    def accept(self, run: PublicationRun, vector: SequenceVector | None) -> SequenceVector | None:
        """See DuplicateDetection."""
        own = Stamp(self._state.incarnation, self._queued + 1)
        self._queued += run.last - run.first + 1
        if vector is None:
            return SequenceVector(run.first, (own,))
        stamps = vector.at(run.first).stamps[: self._window - 1]
        return SequenceVector(run.first, (own, *stamps))


class BySourceWithVectors:
    """Detection by source, with vectors in addition for the check of legitimacy."""

    def __init__(self, state: State, sequences: SourceSequences) -> None:
        self._state = state
        self._by_source = BySource(sequences)
        self._by_vector = ByVector(state, sequences)
        self.accept = self._by_vector.accept

    def old_until(self, run: PublicationRun, path: Path, vector: SequenceVector | None) -> int:
        """See DuplicateDetection."""
        return self._compare(
            run,
            path,
            vector,
            self._by_source.old_until(run, path, vector),
            self._by_vector.old_until(run, path, vector),
        )

    def _compare(
        self,
        run: PublicationRun,
        path: Path,
        vector: SequenceVector | None,
        by_source: int,
        by_vector: int,
    ) -> int:
        return by_source


class BothWays(BySourceWithVectors):
    """Detection by source, with a count of the disagreements of vectors.

    A disagreement is recorded with the restarted brokers of the window. Without restarts, and with
    legitimate propagation, none occurs.
    """

    def _compare(
        self,
        run: PublicationRun,
        path: Path,
        vector: SequenceVector | None,
        by_source: int,
        by_vector: int,
    ) -> int:
        if vector is not None:
            low, high = sorted((by_source, by_vector))
            disputed = [sequence for sequence in run.sequences if low < sequence <= high]
            if disputed:
                self._disagree(run.source, disputed, path, vector, by_source > by_vector)
        return by_source

    def _disagree(
        self,
        source: SourceId,
        disputed: list[int],
        path: Path,
        vector: SequenceVector,
        old_by_source: bool,
    ) -> None:
        self._state.counters["dedupe_disagreements"] += len(disputed)
        restarted = self._by_vector.find_restarted(path, vector)
        if self._state.incarnation > 1:
            restarted.append(self._state.broker)
        self._state.machine.record(
            "dedupe_disagreement",
            source=list(source),
            first=disputed[0],
            last=disputed[-1],
            old_by=("source" if old_by_source else "vector"),
            restarted=restarted,
        )


def make_detection(state: State, sequences: SourceSequences) -> DuplicateDetection:
    """Return the duplicate detection for the parameters."""
    if not state.parameters.carries_vectors:
        return BySource(sequences)
    if state.parameters.dedupe == "vector":
        return ByVector(state, sequences)
    if state.parameters.dedupe == "both":
        return BothWays(state, sequences)
    return BySourceWithVectors(state, sequences)


def window(state: State) -> int:
    """Return the greatest number of brokers in a vector.

    Paper: [DFT11] §VII line 812. The number counts brokers, not links: of 2δ + 1, two copies that
    bypassed δ each have one in common.
    """
    return 2 * state.parameters.delta + 1


def check_vector(
    state: State, peer: Peer, run: PublicationRun, path: Path, vector: SequenceVector | None
) -> None:
    """Check that a received vector is about the brokers before this broker on the path.

    Raises:
        RemoteProtocolError: the vector is about other brokers, or present without use; the fault of
            the peer that sent the vector.
    """
    if vector is None and not state.parameters.carries_vectors:
        return
    if vector is None or not state.parameters.carries_vectors:
        wanted = (
            "without a vector"
            if vector is None
            else "with a vector, which this profile does not use"
        )
        raise RemoteProtocolError(peer, f"publications of {run.source} {wanted}")
    stamps, brokers = vector.stamps, path[-2::-1]
    if len(stamps) != min(window(state), len(brokers)):
        raise RemoteProtocolError(
            peer, f"a vector of {len(stamps)} stamps along {path[:20]}, at most {window(state)}"
        )
    span = run.last - vector.sequence
    if not 1 <= vector.sequence <= run.first or span >= LONGEST_SPAN:
        raise RemoteProtocolError(peer, f"stamps of {vector.sequence} for {run.first}…{run.last}")
    for broker, stamp in zip(brokers, stamps, strict=False):
        if stamp is None:
            if broker in (peer, run.source.broker):
                raise RemoteProtocolError(peer, f"a vector that bypassed broker {broker}")
        elif not stamp.incarnation or not 0 < stamp.number < HIGHEST_STAMP - span:
            raise RemoteProtocolError(peer, f"no stamp of broker {broker}: {tuple(stamp)}")
    between = brokers.index(peer) if peer in brokers else 0
    if any(stamps[:between]):
        raise RemoteProtocolError(peer, "stamps of brokers between it and here")
    passed = stamps.count(None)
    if passed > state.parameters.delta:
        if state.parameters.legitimacy == "hold":
            raise RemoteProtocolError(peer, f"passed {passed} of {len(stamps)} brokers")
        state.counters["legitimacy_violated"] += len(run)
