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

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer, SourceId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.delta_tree.messages import Path, SequenceVector, Stamp
from brokerd.protocols.delta_tree.queue_entries import Entry, Route
from brokerd.protocols.delta_tree.sessions import Sessions
from brokerd.protocols.delta_tree.state import State

LONGEST_SPAN = 1 << 40
"""From the first to the last publication of a run; so that stamps never run out."""

HIGHEST_STAMP = 1 << 62


class VectorDetection:
    """Duplicate detection by the highest recorded stamp of every broker of the window.

    Any two copies that bypassed at most δ brokers of the window have a broker in common,
    which has queued the publication once and gave both the same stamp. Publications of clients
    carry no vector; their publishers' own numbers decide.

    Without `dedupe` "vector" the numbers of sources decide, and vectors only serve legitimacy. With
    "both" the disagreements of vectors are counted, and recorded with the restarted brokers of the
    window: without restarts, and with legitimate propagation, none occurs.

    Paper: [DFT11] §VII lines 688-816. The update of vectors is derived; the paper's extended
    version with the update is not available.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._sequences = state.sequences
        self._dedupe = state.parameters.dedupe
        self._window = window(state)
        self._seen: dict[BrokerNumber, Stamp] = {}
        self._queued = 0

    def old_until(self, run: PublicationRun, path: Path, vector: SequenceVector | None) -> int:
        """Return the sequence number up to which the run's publications are duplicates.

        Called once per received run: the stamps of other brokers in its vector are recorded.
        """
        by_source = self._sequences.received(run.source)
        if vector is None:
            return by_source
        by_vector = self._record_stamps(run, path, vector)
        if self._dedupe == "vector":
            return by_vector
        if self._dedupe == "both":
            low, high = sorted((by_source, by_vector))
            disputed = [sequence for sequence in run.sequences if low < sequence <= high]
            if disputed:
                self._disagree(run.source, disputed, path, vector, by_source > by_vector)
        return by_source

    def accept(self, run: PublicationRun, vector: SequenceVector | None) -> SequenceVector:
        """Record first copies that are about to be queued; return their stamps from here on."""
        own = Stamp(self._state.incarnation, self._queued + 1)
        self._queued += run.last - run.first + 1
        if vector is None:
            return SequenceVector(run.first, (own,))
        stamps = vector.at(run.first).stamps[: self._window - 1]
        return SequenceVector(run.first, (own, *stamps))

    def _record_stamps(self, run: PublicationRun, path: Path, vector: SequenceVector) -> int:
        """Record stamps; return the number up to which publications are duplicates by them."""
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

    def _disagree(
        self,
        source: SourceId,
        disputed: list[int],
        path: Path,
        vector: SequenceVector,
        old_by_source: bool,
    ) -> None:
        """Record a disagreement; this copy may be from before a restart in its vector."""
        self._state.counters["dedupe_disagreements"] += len(disputed)
        restarted = [
            broker
            for broker, stamp in zip(path[-2::-1], vector.stamps, strict=False)
            if stamp is not None and self._seen[broker].incarnation > 1
        ]
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


class Propagation:
    """The decision whether an entry may be sent to a hop now, and its vector.

    With `switch` "drain" publications stay at their hop while the session lives; otherwise they
    leave a hop as soon as another one exists. With `legitimacy` "hold" publications without
    legitimate propagation wait; otherwise they are counted.
    """

    def __init__(self, state: State, sessions: Sessions) -> None:
        self._state = state
        self._sessions = sessions
        self._drains = state.parameters.switch == "drain"
        self._holds = state.parameters.legitimacy == "hold"
        self._window = window(state)
        self._blocked: dict[BrokerNumber, None] = {}

    @property
    def blocks(self) -> bool:
        """True if a publication waits for an existing hop."""
        return bool(self._blocked)

    def list_staying(self) -> dict[BrokerNumber, int]:
        """Return hop → session for transfers that may stay, in addition to hops in use."""
        if not self._drains:
            return {}
        nodes = self._sessions.nodes.values()
        return {node.broker: node.session for node in nodes if node.session}

    def begin(self, entries: Iterable[Entry], routes: Sequence[Route]) -> None:
        """Clear the blocked hops; block hops with publications still at another hop."""
        self._blocked = {}
        if self._drains:
            self._blocked = {
                route.hop: None
                for entry in entries
                for transfer in entry.transfers.values()
                for route in routes
                if route.hop != transfer.hop and route.destinations & transfer.destinations
            }

    def can_send(self, entry: Entry, route: Route) -> bool:
        """Return True if the entry may be sent to the hop now; otherwise block the hop.

        Called in queue order.
        """
        if route.hop in self._blocked:
            return False
        if entry.notifier is not None or not self._must_wait(entry, route.hop):
            return True
        self._state.counters["legitimacy_held"] += entry.publications
        self._blocked[route.hop] = None
        return False

    def vector_for(
        self, vector: SequenceVector, hop: BrokerNumber, publications: int
    ) -> SequenceVector:
        """Return the vector that publications carry to a hop."""
        onward = self._next_vector(vector, hop)
        if onward.stamps.count(None) > self._state.parameters.delta:
            self._state.counters["legitimacy_violating"] += publications
        return onward

    def _must_wait(self, entry: Entry, hop: BrokerNumber) -> bool:
        """Return True if publications would have bypassed too many brokers of the window."""
        if not self._holds:
            return False
        vector = entry.annotation.vector
        assert vector is not None, f"{entry} has no vector"
        bypassed = self._next_vector(vector, hop).stamps.count(None)
        return bypassed > self._state.parameters.delta

    def _next_vector(self, vector: SequenceVector, hop: BrokerNumber) -> SequenceVector:
        """Return the vector of the publications at the hop."""
        passed = len(self._state.neighbourhood.paths[hop]) - 2
        if not passed:
            return vector
        return SequenceVector(vector.sequence, ((None,) * passed + vector.stamps)[: self._window])
