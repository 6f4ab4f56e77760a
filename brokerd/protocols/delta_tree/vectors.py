"""Sequence vectors: stamps of 2δ + 1 brokers on a publication (`dedupe`, `legitimacy`).

Stamps restart in a broker that restarts, and other brokers still compare them, so vectors go wrong
if a broker of the window restarts between two copies. Every scheme of duplicate detection returns
the number up to which the publications of a run are duplicates: first copies follow duplicates.

Publications may wait although a hop exists: for legitimacy, and while draining. A hop with a
waiting publication is *blocked*: all later publications in the queue wait too. Otherwise the order
would be lost, and publications, which would count as old.

Paper: [DFT11] §VII lines 688-816. Deviates: the paper does not define the handling of publications
behind one that may not be forwarded.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer, SourceId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.delta_tree.messages import Path, SequenceVector, Stamp
from brokerd.protocols.delta_tree.queue_entries import Entry, Route
from brokerd.protocols.delta_tree.sessions import Sessions
from brokerd.protocols.delta_tree.state import SourceSequences, State

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


class Resending:
    """Publications leave a hop as soon as another one exists (`switch` "resend")."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def list_staying(self) -> dict[BrokerNumber, int]:
        """Return hop → session for transfers that may stay, in addition to hops in use."""
        return {}

    def list_blocked(
        self, entries: Iterable[Entry], routes: Sequence[Route]
    ) -> dict[BrokerNumber, None]:
        """Return the hops that wait for a confirmation by another hop."""
        return {}


class Draining(Resending):
    """Publications stay at their hop while the session lives (`switch` "drain")."""

    def list_staying(self) -> dict[BrokerNumber, int]:
        """See Resending."""
        nodes = self._sessions.nodes.values()
        return {node.broker: node.session for node in nodes if node.session}

    def list_blocked(
        self, entries: Iterable[Entry], routes: Sequence[Route]
    ) -> dict[BrokerNumber, None]:
        """See Resending."""
        return {
            route.hop: None
            for entry in entries
            for transfer in entry.transfers.values()
            for route in routes
            if route.hop != transfer.hop and route.destinations & transfer.destinations
        }


class Observing:
    """Publications without legitimate propagation continue (`legitimacy` "observe")."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._window = window(state)

    def holds(self, vector: SequenceVector | None, hop: BrokerNumber) -> bool:
        """Return True if publications with this vector may not be sent to a hop."""
        return False

    def count_bypassed(self, vector: SequenceVector) -> int:
        """Return the number of brokers of the window that publications bypassed."""
        return vector.stamps.count(None)

    def next_vector(self, vector: SequenceVector, hop: BrokerNumber) -> SequenceVector:
        """Return the vector of the publications at the hop."""
        passed = len(self._state.neighbourhood.paths[hop]) - 2
        if not passed:
            return vector
        return SequenceVector(vector.sequence, ((None,) * passed + vector.stamps)[: self._window])


class Holding(Observing):
    """Publications without legitimate propagation wait (`legitimacy` "hold")."""

    def holds(self, vector: SequenceVector | None, hop: BrokerNumber) -> bool:
        """See Observing."""
        assert vector is not None, "publications without a vector"
        return self.count_bypassed(self.next_vector(vector, hop)) > self._state.parameters.delta


class Propagation:
    """The decision whether an entry may be sent to a hop now, and its vector."""

    def __init__(self, state: State, sessions: Sessions) -> None:
        self._state = state
        drains, holds = state.parameters.switch == "drain", state.parameters.legitimacy == "hold"
        self._switch = (Draining if drains else Resending)(sessions)
        self._legitimacy = (Holding if holds else Observing)(state)
        self._blocked: dict[BrokerNumber, None] = {}

    @property
    def blocks(self) -> bool:
        """True if a publication waits for an existing hop."""
        return bool(self._blocked)

    # ------------------------------------------------------------ waiting

    def list_staying(self) -> dict[BrokerNumber, int]:
        """Return hop → session for transfers that may stay, in addition to hops in use."""
        return self._switch.list_staying()

    def begin(self, entries: Iterable[Entry], routes: Sequence[Route]) -> None:
        """Clear the blocked hops; block hops with publications still at another hop."""
        self._blocked = self._switch.list_blocked(entries, routes)

    def can_send(self, entry: Entry, vector: SequenceVector | None, route: Route) -> bool:
        """Return True if the entry may be sent to the hop now; otherwise block the hop.

        Called in queue order.
        """
        if route.hop in self._blocked:
            return False
        if entry.notifier is not None or not self._legitimacy.holds(vector, route.hop):
            return True
        self._state.counters["legitimacy_held"] += entry.publications
        self._blocked[route.hop] = None
        return False

    # ------------------------------------------------------------ sending

    def vector_for(
        self, vector: SequenceVector, hop: BrokerNumber, publications: int
    ) -> SequenceVector:
        """Return the vector that publications carry to a hop."""
        onward = self._legitimacy.next_vector(vector, hop)
        if self._legitimacy.count_bypassed(onward) > self._state.parameters.delta:
            self._state.counters["legitimacy_violating"] += publications
        return onward
