"""Copies of a broker's state against a plain state, through ended sessions and restarts of both.

An owner changes its rows and logs at random. Sessions end, and both brokers restart in between. A
restarted replica has the same copies as one that continued, and a restored broker has its rows
and records again.
"""

from collections import deque
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from brokerd.errors import RemoteProtocolError
from brokerd.protocols.gryphon import copies as copies_module
from brokerd.protocols.gryphon import replicated_state as state_module
from brokerd.protocols.gryphon.copies import Copies
from brokerd.protocols.gryphon.definition import COPIES
from brokerd.protocols.gryphon.messages import (
    CopyEnds,
    CopyState,
    CopyStored,
    CopyWrite,
    CopyWrites,
    WindowProbe,
)
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.replicated_core import ReplicatedCore
from brokerd.protocols.gryphon.replicated_state import ReplicatedState, Restoration
from brokerd.protocols.gryphon.replication import REPLICATION, EntryKind, WriteKind, unpack_entry
from brokerd.protocols.gryphon.state import PersistentState
from brokerd.protocols.interface import (
    Append,
    Change,
    Chop,
    CloseSession,
    Commit,
    Effect,
    Event,
    LogEnds,
    MessageReceived,
    OpenFailed,
    Persisted,
    Read,
    RecordsRead,
    Send,
    SessionEstablished,
    SessionLost,
    Started,
    Truncate,
)
from tests.protocols.gryphon.test_replicas import TOPOLOGY

OWNER, REPLICA, OTHER = 0, 1, 5
SNAPSHOT_BYTES = 600
LOGS = ("events", "matches")


class ReplicaDisk:
    """A replica with the log of its copies."""

    def __init__(self) -> None:
        self.copies = Copies((OWNER, OTHER))
        self.copies.recover(LogEnds(), is_valid=True)
        self.entries: dict[int, bytes] = {}
        self.first = self.next = 1

    def write(self, peer: int, message: CopyWrites) -> CopyStored:
        """Take writes; return the acknowledgement once they are on disk."""
        self.copies.check(peer, message.term, message)
        entries, acknowledgement = self.copies.on_writes(peer, message)
        self.append(entries)
        self.carry_out(self.copies.release())
        return acknowledgement.message

    def append(self, entries: list[Any]) -> None:
        for pieces in entries:
            self.entries[self.next] = b"".join(pieces)
            self.next += 1

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            assert isinstance(effect, Chop), effect
            for place in range(self.first, effect.first):
                del self.entries[place]
            self.first = effect.first

    def read(self, first: int, end: int) -> list[bytes]:
        return [self.entries[place] for place in range(first, end)]

    def restart(self) -> None:
        """Read the log; check that the copies are those of the process before, and no more."""
        again = Copies((OWNER, OTHER))
        effects: list[Effect] = again.recover(LogEnds(self.first, self.next), is_valid=True)
        while effects and isinstance(read := effects[0], Read):
            effects = again.on_page(
                read.first, self.read(read.first, min(read.end, read.first + 5))
            )
        assert again.is_read
        assert again.whole == self.copies.whole
        self.copies = again
        self.carry_out(effects)


class Owner:
    """A broker with rows and logs, a replica, and a plain copy of its own state."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.rows: dict[tuple[str, str], int] = {}
        self.logs = {name: (1, deque[bytes]()) for name in LOGS}
        self.term = self.count = 0
        self.replica = ReplicaDisk()
        self.in_flight: deque[CopyWrites] = deque()
        self.is_up = False
        self.begin()

    def begin(self) -> None:
        """Begin an incarnation, whose logs end earlier, before any session."""
        self.term += 1
        self.is_up = False
        self.in_flight.clear()
        self.state = ReplicatedState(OWNER, (REPLICA, 2), 3)
        tables: dict[str, dict[str, int]] = {}
        for (table, key), value in self.rows.items():
            tables.setdefault(table, {})[key] = value
        self.state.begin(self.term, 7, tables, self.ends())
        for name, (first, log) in self.logs.items():
            end = self.random.randint(first, first + len(log))
            if end < first + len(log):
                while first + len(log) > end:
                    log.pop()
                assert self.state.on_effects([Truncate(name, end)]) == []

    def ends(self) -> dict[str, LogEnds]:
        return {name: LogEnds(first, first + len(log)) for name, (first, log) in self.logs.items()}

    def change(self) -> None:
        """Change a row or a log, and send the change."""
        effect = self._draw()
        for _, message in self.state.on_effects([effect]):
            self.in_flight.append(message)

    def _draw(self) -> Effect:
        self.count += 1
        name = self.random.choice(LOGS)
        first, log = self.logs[name]
        match self.random.randrange(8):
            case 1 if log:
                start = self.random.randint(first, first + len(log))
                for _ in range(start - first):
                    log.popleft()
                self.logs[name] = start, log
                return Chop(name, start)
            case 2 | 3:
                key, value = f"k{self.random.randrange(4)}", self.random.choice([None, self.count])
                if value is None:
                    self.rows.pop(("t", key), None)
                else:
                    self.rows["t", key] = value
                return Commit((Change("t", key, value),), None)
        records = [b"%d" % self.count * each for each in range(1, self.random.randint(2, 5))]
        log.extend(records)
        return Append(name, tuple([(each,) for each in records]), None)

    # ------------------------------------------------------------ the session

    def connect(self) -> None:
        self.is_up = True
        self.in_flight.append(self.state.on_state(REPLICA, self.replica.copies.state_of(OWNER)))

    def end_session(self) -> None:
        self.is_up = False
        self.in_flight.clear()
        self.state.on_session_end(REPLICA)

    def deliver(self) -> None:
        """Deliver the next message, and the answer of the replica."""
        message = self.in_flight.popleft()
        stored = self.replica.write(OWNER, message)
        if not message.is_awaited or not self.state.on_stored(REPLICA, stored):
            return
        while self.state.can_fill(REPLICA):
            following = self.state.fill_next(REPLICA)
            if isinstance(following, CopyWrites):
                self.in_flight.append(following)
                return
            first, log = self.logs[following.log]
            page = [*log][following.first - first : following.end - first]
            while self.random.random() < 0.3:
                self.change()  # while the page is read
            filled = self.state.on_page(REPLICA, following.log, following.first, page)
            assert filled is not None
            self.in_flight.append(filled)

    def settle(self) -> None:
        """Deliver all messages of a session."""
        if not self.is_up:
            self.connect()
        while self.in_flight:
            self.deliver()

    # ------------------------------------------------------------ checks

    def check_restored(self) -> None:
        """Check that the replica returns the whole state."""
        copies, found = self.replica.copies, Restoration(3)
        copy = copies.state_of(OWNER)
        message: CopyWrites | None = copies.on_request(OWNER, copy.term)
        records: dict[str, list[bytes]] = {name: [] for name in LOGS}
        while message is not None:
            for append in found.on_writes(message):
                records[append.log] += [b"".join(pieces) for pieces in append.records]
            copies.on_stored(OWNER)
            following = copies.send_next(OWNER)
            if isinstance(following, Read):
                assert following.log == COPIES
                page = self.replica.read(following.first, following.end)
                message = copies.on_places(OWNER, following.first, page)
            else:
                message = following
        assert found.is_whole
        assert found.rows == self.rows
        assert found.lineage == 7
        assert {name: found.logs.get(name, LogEnds()) for name in LOGS} == {
            name: ends if ends.first < ends.next else found.logs[name]
            for name, ends in self.ends().items()
        }
        assert records == {name: [*log] for name, (_, log) in self.logs.items()}


def other_copy(replica: ReplicaDisk, term: int) -> None:
    """Fill the copy of another broker, which the replica may drop."""
    begin, end = (CopyWrite(kind, "", 0, 0, ()) for kind in (WriteKind.BEGIN, WriteKind.END))
    replica.copies.state_of(OTHER)
    for position, write in ((0, begin), (1, end)):
        replica.write(OTHER, CopyWrites(OTHER, term, position, True, (write,)))


def check_room(owner: Owner) -> None:
    """Check that the log of copies has a snapshot after enough writes, and no sooner."""
    kinds = [unpack_entry(each)[0] for each in owner.replica.entries.values()]
    sizes = sum(map(len, owner.replica.entries.values()))
    assert kinds.count(EntryKind.SNAPSHOT) <= 4 + 2 * sizes // SNAPSHOT_BYTES


def live(owner: Owner) -> None:
    """Change the state of an owner, with episodes, and check its copy."""
    for step in range(300):
        match owner.random.randrange(40):
            case 0:
                owner.end_session()
            case 1:
                owner.end_session()
                owner.replica.restart()
            case 2:
                owner.begin()
            case 3:
                owner.settle()
                owner.check_restored()
                check_room(owner)
            case 4:
                other_copy(owner.replica, step + 1)
            case 5:
                owner.replica.append(owner.replica.copies.drop(OTHER))
                owner.replica.carry_out(owner.replica.copies.release())
            case n if n < 24:
                owner.change()
            case _ if owner.in_flight:
                owner.deliver()
            case _ if not owner.is_up:
                owner.connect()
    owner.settle()
    owner.check_restored()


@pytest.mark.parametrize("seed", range(8))
def test_a_copy_has_the_state_of_its_owner_after_every_episode(seed: int) -> None:
    with pytest.MonkeyPatch.context() as limits:
        limits.setattr(state_module, "FILL_RECORDS", 3)
        limits.setattr(copies_module, "PLACES_PER_READ", 4)
        limits.setattr(copies_module, "SNAPSHOT_BYTES", SNAPSHOT_BYTES)
        live(Owner(Random(seed)))


def answers() -> Iterator[CopyState]:
    """Yield the states of copies, best last."""
    for term, position in ((1, 9), (2, 3), (2, 4)):
        yield CopyState(OWNER, term, position, ())


def test_the_newest_copy_of_the_replicas_in_session_is_restored() -> None:
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        found, states = Restoration(5), [*answers()]
        for peer in order:
            found.on_state(peer, states[peer])
        assert found.choose() == states[2]
        assert found.source == 2
        found.on_session_end(2)
        assert found.choose() is None  # two of the three that are needed
        found.on_state(3, states[0])
        assert found.choose() == states[1]
        assert found.source == 1


# ---------------------------------------------------------------- an owner that starts


class TruncatingCore:
    """A core that reads its log in pages at the start, and replaces the last record."""

    persistent = PersistentState((), ("matches",))

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        match event:
            case Started():
                return [Read("matches", 1, 5)]
            case RecordsRead(first=1):
                return [Read("matches", 3, 5)]
            case RecordsRead():
                return [Truncate("matches", 4), Append("matches", ((b"new",),), None)]
        return []

    def next_deadline(self) -> None:
        return None


def started_owner() -> tuple[ReplicatedCore, list[Effect]]:
    """Return an owner with a log of 4 records, and its first effects."""
    parameters = GryphonParameters(replicas=3, pubends=1)
    core: Any = TruncatingCore()
    owner = ReplicatedCore(core, 0, TOPOLOGY, parameters)
    logs = {"matches": LogEnds(1, 5), COPIES: LogEnds()}
    return owner, owner.handle(Started(2, True, {}, logs), 0)


def sent_to_replica(effects: list[Effect]) -> list[CopyWrites]:
    messages = [each.message for each in effects if isinstance(each, Send) and each.peer == 1]
    return [each for each in messages if isinstance(each, CopyWrites)]


def state_copy(owner: ReplicatedCore, session: int) -> list[CopyWrites]:
    """State a copy of the incarnation before, on a new session; return the messages for it."""
    owner.handle(SessionEstablished(1, session, 1), 0)
    stated = CopyState(0, 1, 9, (CopyEnds("matches", 1, 5),))
    return sent_to_replica(owner.handle(MessageReceived(1, session, stated), 0))


def test_no_copy_is_filled_before_the_owner_has_truncated_its_logs() -> None:
    """A copy with the truncated records would keep them in the next incarnation."""
    owner, _ = started_owner()
    assert state_copy(owner, 1) == []
    with pytest.raises(RemoteProtocolError, match="twice"):
        owner.handle(MessageReceived(1, 1, CopyState(0, 1, 9, ())), 0)
    assert not sent_to_replica(owner.handle(RecordsRead("matches", 1, (b"1", b"2")), 0))
    (filled,) = sent_to_replica(owner.handle(RecordsRead("matches", 3, (b"3", b"4")), 0))
    assert filled.writes[1:] == (CopyWrite(WriteKind.KEEP, "matches", 1, 4, ()),)


def test_a_session_that_ended_while_the_owner_read_its_logs_is_not_filled() -> None:
    owner, _ = started_owner()
    state_copy(owner, 1)
    owner.handle(SessionLost(1, 1, "closed_by_peer"), 0)
    owner.handle(RecordsRead("matches", 1, (b"1", b"2")), 0)
    assert not sent_to_replica(owner.handle(RecordsRead("matches", 3, (b"3", b"4")), 0))
    assert state_copy(owner, 2)


def test_a_session_that_began_and_ended_during_a_restoration_is_not_seen_by_the_core() -> None:
    seen: list[Event] = []
    owner, _ = started_owner()
    owner.restoration = Restoration(3)
    owner.watch = lambda event, _: seen.append(event)
    for event in (
        SessionEstablished(3, 1, 1),
        MessageReceived(3, 1, WindowProbe(0, False, 1)),
        SessionLost(3, 1, "closed_by_peer"),
        SessionEstablished(3, 2, 1),
        MessageReceived(3, 2, WindowProbe(0, False, 2)),
    ):
        owner.handle(event, 0)
    assert not seen
    owner.restoration.source = 1
    owner._finish_restoration()
    sessions = [each.session for each in seen if isinstance(each, SessionEstablished)]
    assert sessions == [2]
    assert [each.session for each in seen if isinstance(each, MessageReceived)] == [2]


def started_replica(rows: dict[str, Any]) -> ReplicatedCore:
    """Return a replica of broker 0 that starts with these rows about copies."""
    core: Any = TruncatingCore()
    replica = ReplicatedCore(core, REPLICA, TOPOLOGY, GryphonParameters(replicas=3, pubends=1))
    logs = {"matches": LogEnds(), COPIES: LogEnds()}
    replica.handle(Started(2, True, {REPLICATION: rows}, logs), 0)
    return replica


def stated_to_owner(effects: list[Effect]) -> bool:
    return any(isinstance(each, Send) and isinstance(each.message, CopyState) for each in effects)


def test_a_replica_refuses_an_owner_once_a_later_process_of_it_had_a_session() -> None:
    """Two processes of a broker that was replaced would each have a majority, with this disk."""
    replica, later = started_replica({}), 4_102
    effects = replica.handle(SessionEstablished(0, 1, later), 0)
    assert not stated_to_owner(effects), "a restarted replica would not refuse the earlier process"
    (commit,) = [each for each in effects if isinstance(each, Commit)]
    assert commit.token is not None
    assert stated_to_owner(replica.handle(Persisted(commit.token), 0))
    replica.handle(SessionLost(0, 1, "closed_by_peer"), 0)
    crossed = started_replica({})
    tokens = []
    for session in (1, 2):
        effects = crossed.handle(SessionEstablished(0, session, later), 0)
        tokens += [each.token for each in effects if isinstance(each, Commit)]
    stated = [stated_to_owner(crossed.handle(Persisted(token or 0), 0)) for token in tokens]
    assert stated == [True], "once, in the present session"
    restarted = started_replica({change.key: change.value for change in commit.changes})
    for each in (replica, restarted):
        effects = each.handle(SessionEstablished(0, 2, 5), 0)
        assert effects == [CloseSession(0, f"incarnation 5 of an owner, after {later}")]
        begin = CopyWrites(0, 5, 0, True, (CopyWrite(WriteKind.BEGIN, "", 0, 0, ()),))
        assert each.handle(MessageReceived(0, 2, begin), 0) == []
        each.handle(SessionLost(0, 2, "protocol_error"), 0)
        assert stated_to_owner(each.handle(SessionEstablished(0, 3, later), 0))


def test_a_replica_refuses_an_owner_while_a_later_process_of_it_is_written_down() -> None:
    """The disk would keep the earlier process, which was written last."""
    replica, later = started_replica({}), 4_102
    written = replica.handle(SessionEstablished(0, 1, later), 0)
    replica.handle(SessionLost(0, 1, "silent"), 0)
    written += replica.handle(SessionEstablished(0, 2, 5), 0)
    assert CloseSession(0, f"incarnation 5 of an owner, after {later}") in written
    rows = {
        change.key: change.value
        for each in written
        if isinstance(each, Commit)
        for change in each.changes
    }
    restarted = started_replica(rows)
    assert isinstance(restarted.handle(SessionEstablished(0, 1, 5), 0)[-1], CloseSession)


def test_clients_are_served_once_sessions_with_a_majority_prove_no_loss() -> None:
    """An owner without its disk would refuse a publisher for good that it does not know."""
    seen: list[Event] = []
    owner, _ = started_owner()
    owner.watch = lambda event, _: seen.append(event)
    for event in (
        SessionEstablished("lost", 1, 1),
        SessionLost("lost", 1, "closed_by_peer"),
        SessionEstablished("client", 2, 1),
        MessageReceived("client", 2, WindowProbe(0, False, 1)),
        SessionEstablished(3, 1, 1),
    ):
        owner.handle(event, 0)
    assert seen == [SessionEstablished(3, 1, 1)], "broker 3 is no replica"
    owner.handle(SessionEstablished(1, 1, 1), 0)
    assert [each.session for each in seen[2:]] == [2, 2]  # type: ignore[union-attr]
    owner.handle(SessionLost(1, 1, "closed_by_peer"), 0)
    owner.handle(SessionEstablished("next", 3, 1), 0)
    assert seen[-1] == SessionEstablished("next", 3, 1)


def test_a_write_of_a_majority_of_five_disks_is_on_two_replicas() -> None:
    state = ReplicatedState(OWNER, (1, 2, 3, 4), 5)
    for peer, position, confirmed in ((3, 9, 0), (1, 4, 4), (2, 7, 7), (4, 8, 8)):
        state.held[peer] = position
        assert state.confirmed() == confirmed


def test_the_rows_of_a_restored_state_have_the_places_of_its_logs() -> None:
    """The core's first record has another index on the disk, also after a restart."""
    owner, _ = started_owner()
    owner.restoration = Restoration(3, source=1, logs={"matches": LogEnds(41, 45)}, lineage=6)
    owner._write_restored()
    (commit,) = [each for each in owner.handle(OpenFailed(2, "down"), 0) if type(each) is Commit]
    rows = {change.key: change.value for change in commit.changes}
    assert (rows["offset.matches"], rows["lineages"]) == (40, [0, 6])


@pytest.mark.parametrize(
    "writes",
    [
        (CopyWrite(WriteKind.RECORDS, "events", 9, 0, (b"r",)),),
        (CopyWrite(WriteKind.TRUNCATE, "events", 0, 0, ()),),
        (CopyWrite(WriteKind.ENDS, "events", 9, 4, ()),),
        (CopyWrite(WriteKind.END, "", 0, 0, ()),),
    ],
    ids=["a gap", "before the log", "reversed ends", "two ends"],
)
def test_the_last_part_of_a_copy_is_checked_as_the_parts_before(
    writes: tuple[CopyWrite, ...],
) -> None:
    """A gap between two records ended the replica."""
    disk = ReplicaDisk()
    begin = CopyWrite(WriteKind.BEGIN, "", 0, 0, ())
    records = CopyWrite(WriteKind.RECORDS, "events", 1, 0, (b"r", b"s"))
    disk.write(OWNER, CopyWrites(OWNER, 1, 0, False, (begin, records)))
    end = CopyWrite(WriteKind.END, "", 0, 0, ())
    with pytest.raises(RemoteProtocolError):
        disk.write(OWNER, CopyWrites(OWNER, 1, 7, True, (*writes, end)))
    disk.write(OWNER, CopyWrites(OWNER, 1, 7, True, (end,)))
    assert disk.copies.whole[OWNER].position == 7
