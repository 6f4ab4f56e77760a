"""Brokers with replicas: lost disks and older copies at every place, and nothing lost."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import pytest

from brokerd.errors import ConfigError, RemoteProtocolError
from brokerd.protocols.gryphon.checks.planning import tree_of_cells
from brokerd.protocols.gryphon.copies import FILL_WINDOW, Copies
from brokerd.protocols.gryphon.definition import COPIES
from brokerd.protocols.gryphon.messages import (
    CopyEnds,
    CopyState,
    CopyStored,
    CopyWrite,
    CopyWrites,
)
from brokerd.protocols.gryphon.replicated_core import ReplicatedCore
from brokerd.protocols.gryphon.replicated_state import ReplicatedState
from brokerd.protocols.gryphon.replication import WriteKind, pack_row, replicas_of, unpack_row
from brokerd.protocols.interface import STATE_RESTORED, Append, Chop, LogEnds, Read
from brokerd.protocols.registry import read_topology
from brokerd.sessions.messages import StateMark
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.simulator.world.handles import BrokerHandle, PublicationHandle, Subscription
from brokerd.units import MILLISECOND_NS
from tests.helpers.gryphon_stories import Story

MUTANTS = bugs_of("gryphon")
TOPOLOGY: Final = tree_of_cells(
    ("p1", "b1", "b2", "s1"), [("p1", "cell"), ("cell", "s1")], {"cell": ["b1", "b2"]}
)


class ReplicaStory(Story):
    """A publishers' broker with the replicas b1 and b2, and a subscribers' broker behind them."""

    def __init__(self, replicas: int = 3, **parameters: Any) -> None:
        super().__init__(topology=TOPOLOGY, replicas=replicas, pubends=1, **parameters)
        self.subscriber: Subscription = self.cluster.subscribe("s1")
        self.sent: list[PublicationHandle] = []
        self.cluster.run_until_quiet()

    def broker(self, name: str) -> BrokerHandle:
        return self.cluster.broker(name)

    def send(self, count: int = 3) -> None:
        """Publish some publications, one after another."""
        self.sent += self.publish(count, pause_s=0.02)

    def kill(self, *names: str, kept: int | None = None) -> dict[str, StateMark | None]:
        """Kill brokers; return the marks of their states that neighbours have."""
        marks = {name: self.broker(name).broker.witnessed_mark() for name in names}
        for name in names:
            self.broker(name).broker.kill(kept)
        return marks

    def lose_disk(self, name: str, copy: tuple[Any, ...] | None = None) -> None:
        """Kill a broker, and start it on an empty disk or on an older copy."""
        (mark,) = self.kill(name).values()
        self.broker(name).restore(copy, mark)

    def core(self, name: str) -> ReplicatedCore:
        core = self.broker(name).broker.core
        assert isinstance(core, ReplicatedCore)
        return core

    def restorations(self, name: str = "p1") -> int:
        """Return how often a broker has restored its state."""
        recorded = self.broker(name).broker.recorded
        return sum(event == STATE_RESTORED for event, _ in recorded)

    def unacknowledged(self) -> int:
        """Return the number of publications that p1 has not acknowledged."""
        return len(self.cluster.clients[self.sent[0].client].core.outgoing)

    def check(self, restorations: int = 1) -> None:
        """Check that everything was delivered once, in order and without a gap."""
        self.settle()
        assert self.subscriber.received == self.sent
        assert self.unacknowledged() == 0
        assert self.restorations() == restorations
        assert self.cluster.restoration.accepted == 0


def undelivered(**parameters: Any) -> ReplicaStory:
    """Return a story with acknowledged publications that only p1 and its replicas have."""
    story = ReplicaStory(**parameters)
    story.send(12)  # some of them are released
    story.kill("s1")
    story.send()
    story.cluster.run_for(1)
    assert story.unacknowledged() == 0
    return story


# ---------------------------------------------------------------- stories of lost state


def lost_disk() -> None:
    """The disk of p1 is lost with acknowledged publications that nobody else has in memory."""
    story = undelivered()
    marks = story.kill("p1", "b1", "b2")
    story.broker("b1").start()
    story.broker("b2").start()
    story.broker("p1").restore(None, marks["p1"])
    story.broker("s1").start()
    story.send()
    story.check()


def older_copy() -> None:
    """P1 starts on a copy of its disk that is older than acknowledged publications."""
    story = ReplicaStory()
    story.send()
    copy = story.broker("p1").copy(is_empty=False)
    story.kill("s1")
    story.send()
    story.cluster.run_for(1)
    story.lose_disk("p1", copy)
    story.broker("s1").start()
    story.send()
    story.check()


def released_publications() -> None:
    """A publisher sends publications again that p1 had released before its disk was lost."""
    story = ReplicaStory()
    story.send()
    client = story.cluster.link(story.sent[0].client, "p1")
    client.blackhole("in")
    story.send()
    story.cluster.run_for(20)
    assert story.unacknowledged() == 3
    story.lose_disk("p1")
    client.heal()
    story.send()
    story.check()


def replica_between_receipt_and_disk() -> None:
    """A replica crashes with writes that are not on its slow disk, and p1 loses its own disk."""
    story = undelivered()
    story.kill("b2")
    story.broker("b1").broker.disk._delay_ns = 50 * MILLISECOND_NS
    story.sent.append(story.cluster.publish("p1", kind="a"))
    story.cluster.run_for(0.02)
    marks = story.kill("p1", "b1", kept=0)
    story.broker("b1").start()
    story.broker("b2").start()
    story.broker("p1").restore(None, marks["p1"])
    story.broker("s1").start()
    story.check()


def own_disk_before_replicas() -> None:
    """P1 crashes with publications on its own disk alone, which were not acknowledged."""
    story = ReplicaStory()
    story.kill("b1", "b2")
    story.send()
    story.cluster.run_for(1)
    assert story.unacknowledged() == 3
    story.kill("p1")
    for name in ("b1", "b2", "p1"):
        story.broker(name).start()
    story.check(restorations=0)


def one_replica_has_it() -> None:
    """One of two replicas has the last publications; p1 waits for both, and takes the longer."""
    story = ReplicaStory()
    story.send()
    story.kill("b1", "s1")
    story.send()
    story.cluster.run_for(1)
    assert story.unacknowledged() == 0
    marks = story.kill("p1", "b2")
    story.broker("b1").start()
    story.broker("p1").restore(None, marks["p1"])
    story.cluster.run_for(5)
    status = story.broker("p1").status()
    assert status.state == "recovering"
    assert "1 of the 2 replicas" in status.idle_reasons[0]
    story.broker("b2").start()
    story.broker("s1").start()
    story.check()


def second_loss() -> None:
    """P1 loses its disk again and again, and once while its copy is on its way."""
    story = undelivered()
    for _ in range(2):
        story.lose_disk("p1")
        story.send(1)
        story.cluster.run_for(3)
    story.lose_disk("p1")
    story.wait_for(lambda: story.core("p1").restoration is not None)
    story.cluster.run_for(0.006)
    story.lose_disk("p1")
    story.broker("s1").start()
    story.check(restorations=3)


def replica_that_lost_its_disk() -> None:
    """A replica without its disk is filled again before it counts; then p1 loses its disk."""
    story = undelivered()
    story.kill("b1", "b2")
    story.broker("b1").put_back(None)
    story.send(1)
    story.cluster.run_for(3)
    assert story.unacknowledged() == 0
    marks = story.kill("p1")
    story.broker("b2").start()
    story.broker("p1").restore(None, marks["p1"])
    story.broker("s1").start()
    story.check()


def _lose_majority(*, is_empty: bool) -> None:
    """P1 and one replica lose what they alone had: p1 waits, and the operator accepts the loss.

    Args:
        is_empty: the replica has an empty disk, not an older copy.
    """
    story = ReplicaStory()
    story.send()
    copy = story.broker("b1").copy(is_empty=is_empty)
    story.kill("b2", "s1")
    story.send()
    story.cluster.run_for(1)
    assert story.unacknowledged() == 0
    story.kill("p1", "b1")
    story.broker("b2").start()
    story.broker("b1").put_back(copy)
    owner = story.broker("p1").broker
    owner.disk.put_back(None)
    owner.restore_state()
    story.cluster.run_for(5)
    assert story.restorations() == 0
    assert story.broker("p1").status().state == "recovering"
    story.kill("p1")
    story.broker("p1").put_back(None)
    story.broker("s1").start()
    story.settle()
    assert story.broker("p1").status().state == "running"


def other_record_at_the_same_place() -> None:
    """A replica has a record that p1 lost before it was acknowledged, and p1 wrote another."""
    story = undelivered()
    story.sent.append(story.cluster.publish("p1", kind="a"))
    story.cluster.run_for(0.0025)
    story.kill("p1", kept=0)
    story.cluster.run_for(0.02)
    story.kill("b1")
    story.sent.append(story.cluster.publish("p1", kind="a"))
    story.broker("p1").start()
    story.cluster.run_for(3)
    assert story.unacknowledged() == 0
    story.broker("b1").start()
    story.cluster.run_for(3)
    story.lose_disk("p1")
    story.broker("s1").start()
    story.check()


def restarted_owner() -> None:
    """P1 restarts without a loss; replicas receive the records that they lack, and no others."""
    story = undelivered()
    story.cluster.run_for(0.5)  # its disk has released what the replicas have released
    story.quiet_since()
    story.broker("p1").restart()
    story.cluster.run_for(2)
    filled = story.from_to("p1", "b1", CopyWrites)
    kinds = [write.kind for each in filled if each.position == 0 for write in each.writes]
    assert kinds == [WriteKind.BEGIN, WriteKind.KEEP]
    story.lose_disk("p1")
    story.broker("s1").start()
    story.check()


def no_majority() -> None:
    """Without a majority of disks nothing is acknowledged, and nothing leaves p1."""
    story = ReplicaStory()
    story.send()
    story.settle()
    story.kill("b1", "b2")
    story.send()
    story.cluster.run_for(5)
    assert story.unacknowledged() == 3
    status = story.broker("p1").status()
    assert "1 disks have a whole copy" in " ".join(status.idle_reasons)
    story.broker("b2").start()
    story.cluster.run_for(3)
    assert story.unacknowledged() == 0
    story.broker("b1").start()
    story.check(restorations=0)


STORIES: Final[Mapping[str, tuple[Callable[[], None], tuple[str, ...]]]] = {
    "lost disk": (
        lost_disk,
        ("replica-releases-all-records", "restored-records-keep-disk-indices"),
    ),
    "older copy": (older_copy, ()),
    "released publications": (released_publications, ("restored-sources-begin-again",)),
    "replica before its disk": (
        replica_between_receipt_and_disk,
        ("replica-answers-before-its-disk",),
    ),
    "own disk before replicas": (own_disk_before_replicas, ("writes-await-no-majority",)),
    "one replica has it": (
        one_replica_has_it,
        ("too-few-answers-restore", "shortest-copy-is-restored"),
    ),
    "second loss": (second_loss, ()),
    "replica that lost its disk": (
        replica_that_lost_its_disk,
        ("copies-are-chopped-at-their-snapshot",),
    ),
    "majority lost, empty replica": (
        partial(_lose_majority, is_empty=True),
        ("empty-replica-answers",),
    ),
    "majority lost, older replica": (
        partial(_lose_majority, is_empty=False),
        ("copies-outlive-a-lost-disk",),
    ),
    "other record": (other_record_at_the_same_place, ("unacknowledged-records-stay",)),
    "restarted owner": (restarted_owner, ()),
    "no majority": (no_majority, ("own-disk-counts-twice",)),
}
"""The stories, each with the named bugs that it finds."""

BUGS: Final = tuple(bug for _, bugs in STORIES.values() for bug in bugs)


@pytest.mark.parametrize("name", STORIES)
def test_nothing_is_lost_while_a_majority_of_disks_survives(name: str) -> None:
    STORIES[name][0]()


@pytest.mark.parametrize(
    "name, bug", [(name, bug) for name, (_, bugs) in STORIES.items() for bug in bugs]
)
def test_a_story_finds_the_mistake_in_replication(name: str, bug: str) -> None:
    with plant([MUTANTS[bug]]), pytest.raises((AssertionError, InvariantViolated, KeyError)):
        STORIES[name][0]()


# ---------------------------------------------------------------- parameters and messages


def test_more_replicas_than_linked_brokers_are_refused_with_the_largest_value() -> None:
    values = {**TOPOLOGY.to_mapping(), "parameters": {"gryphon": {"replicas": 4}}}
    with pytest.raises(ConfigError, match=r"t: parameters.gryphon: replicas = 4; .* at most 3"):
        read_topology(values, "t")
    values["parameters"] = {"gryphon": {"replicas": 0}}
    with pytest.raises(ConfigError, match="replicas = 0; at least 1"):
        read_topology(values, "t")


def test_replicas_are_the_next_linked_brokers_cyclically() -> None:
    assert replicas_of(3, (1, 2, 5, 7), 3) == (5, 7)
    assert replicas_of(6, (1, 2, 5, 7), 4) == (7, 1, 2)


@pytest.mark.parametrize("value", [0, "a", [1, [b"\x00", "b"]], True])
def test_a_row_of_a_copy_equals_the_row(value: object) -> None:
    assert unpack_row(pack_row("t", "k", value)) == ("t", "k", value)


BEGIN: Final = CopyWrite(WriteKind.BEGIN, "", 0, 0, ())
END: Final = CopyWrite(WriteKind.END, "", 0, 0, ())
RECORD: Final = CopyWrite(WriteKind.RECORDS, "events", 5, 0, (b"r",))
ROW: Final = CopyWrite(WriteKind.ROWS, "", 0, 0, (pack_row("t", "k", 1),))


def replica_with_a_copy() -> Copies:
    """Return a replica with a whole copy of term 2, position 4, of broker 0."""
    copies = Copies((0,))
    copies.recover(LogEnds(), is_valid=True)
    for position, writes in ((0, (BEGIN,)), (0, (RECORD,)), (4, (ROW, END))):
        message = CopyWrites(0, 2, position, True, writes)
        copies.check(0, 2, message)
        copies.on_writes(0, message)
    return copies


@pytest.mark.parametrize(
    "term, message",
    [
        (1, CopyWrites(0, 1, 0, True, (BEGIN,))),
        (2, CopyWrites(0, 3, 0, True, (BEGIN,))),
        (3, CopyWrites(0, 3, 1, True, (ROW,))),
        (2, CopyWrites(0, 2, 6, True, (ROW,))),
        (2, CopyWrites(0, 2, 5, True, (BEGIN,))),
        (2, CopyWrites(0, 2, 5, True, (RECORD,))),
        (2, CopyWrites(0, 2, 0, True, (RECORD,))),
        (2, CopyWrites(0, 2, 5, True, (ROW._replace(items=(b"{}",)),))),
        (2, CopyWrites(0, 2, 5, True, (ROW._replace(kind=99),))),
    ],
    ids=lambda value: "",
)
def test_a_replica_refuses_writes_that_do_not_follow_its_copy(
    term: int, message: CopyWrites
) -> None:
    copies = replica_with_a_copy()
    with pytest.raises(RemoteProtocolError):
        copies.check(0, term, message)
    assert copies.state_of(0).position == 4


def test_an_owner_refuses_a_later_term_and_writes_that_it_has_not_sent() -> None:
    state = ReplicatedState(0, (1, 2), 3)
    state.begin(5, 0, {}, {"events": LogEnds()})
    with pytest.raises(RemoteProtocolError, match="term 6"):
        state.check(1, CopyState(0, 6, 1, ()))
    with pytest.raises(RemoteProtocolError, match="acknowledges write 9"):
        state.on_stored(1, CopyStored(0, 5, 9))
    with pytest.raises(RemoteProtocolError, match="without a copy"):
        state.on_stored(1, CopyStored(0, 5, 1))


def test_pages_of_a_copy_are_sent_before_earlier_ones_are_acknowledged() -> None:
    """A long log is copied at the pace of the disks, not of round trips; the window bounds it."""
    state = ReplicatedState(0, (1, 2), 3)
    state.begin(5, 0, {}, {"events": LogEnds(1, 21)})
    state.on_state(1, CopyState(0, 0, 0, ()))
    sent = [0]
    stored = CopyStored(0, 5, 0)
    while state.on_stored(1, stored):
        while state.can_fill(1) and isinstance(read := state.fill_next(1), Read):
            assert state.on_page(1, "events", read.first, (b"record",)) is not None
            sent[-1] += 1
        sent.append(0)
    assert sent == [FILL_WINDOW, *[1] * (20 - FILL_WINDOW), 0, 0]
    for _ in range(FILL_WINDOW - 1):
        assert not state.on_stored(1, stored), "acknowledgements that arrive after the end"


def test_records_released_while_another_log_is_copied_leave_no_gap() -> None:
    """The first log has no records when a page of the second is read, and has some afterwards."""
    state, copies = ReplicatedState(0, (1, 2), 3), Copies((0,))
    copies.recover(LogEnds(), is_valid=True)
    state.begin(5, 0, {}, {"events": LogEnds(1, 3), "filters": LogEnds(1, 3)})
    state.on_effects([Append("events", ((b"e",), (b"e",)), None)])

    def store(message: CopyWrites | Read | None) -> None:
        assert isinstance(message, CopyWrites)
        copies.check(0, 5, message)
        assert copies.on_writes(0, message)[1].message == CopyStored(0, 5, message.position)

    store(state.on_state(1, CopyState(0, 0, 0, ())))
    state.on_stored(1, CopyStored(0, 5, 0))
    for changes, read in (
        ([], Read("events", 1, 5)),
        ([Chop("events", 5)], Read("filters", 1, 3)),
        ([Append("events", ((b"e",),), None)], Read("events", 5, 6)),
        ([], Read("filters", 2, 3)),
    ):
        state.on_effects(changes)
        assert state.fill_next(1) == read
        store(state.on_page(1, read.log, read.first, (b"r",)))
    store(state.fill_next(1))
    assert copies.state_of(0).logs == (CopyEnds("events", 5, 6), CopyEnds("filters", 1, 3))


def test_pages_of_a_returned_copy_are_sent_before_earlier_ones_are_acknowledged() -> None:
    copies = Copies((0,))
    copies.recover(LogEnds(), is_valid=True)
    entries = [b""]
    records = [RECORD._replace(first=number) for number in range(5, 405)]
    for position, writes in ((0, (BEGIN,)), *((0, (each,)) for each in records), (4, (END,))):
        packed, _ = copies.on_writes(0, CopyWrites(0, 2, position, True, writes))
        entries += [b"".join(pieces) for pieces in packed]
    copies.on_request(0, 2)
    copies.on_stored(0)
    pages = 0
    while isinstance(read := copies.send_next(0), Read):
        assert copies.on_places(0, read.first, entries[read.first : read.end]) is not None
        pages += 1
    assert (pages, read) == (FILL_WINDOW, None)
    copies.on_stored(0)
    assert isinstance(copies.send_next(0), Read)


def test_an_owner_refuses_a_second_acknowledgement_of_a_part() -> None:
    state = ReplicatedState(0, (1, 2), 3)
    state.begin(5, 0, {}, {"events": LogEnds(1, 21)})
    state.on_state(1, CopyState(0, 0, 0, ()))
    assert state.on_stored(1, CopyStored(0, 5, 0))
    with pytest.raises(RemoteProtocolError, match="twice"):
        state.on_stored(1, CopyStored(0, 5, 0))


def test_a_replica_restarts_with_the_copies_that_its_log_has() -> None:
    copies, again = Copies((0,)), Copies((0,))
    copies.recover(LogEnds(), is_valid=True)
    entries: list[bytes] = []
    for position, writes in ((0, (BEGIN,)), (0, (RECORD,)), (4, (ROW, END)), (5, (ROW,))):
        records, _ = copies.on_writes(0, CopyWrites(0, 2, position, True, writes))
        entries += [b"".join(pieces) for pieces in records]
    again.recover(LogEnds(1, len(entries) + 1), is_valid=True)
    again.on_page(1, entries)
    assert (
        again.state_of(0) == copies.state_of(0) == CopyState(0, 2, 5, (CopyEnds("events", 5, 6),))
    )
    lost = Copies((0,))
    assert lost.recover(LogEnds(1, 4), is_valid=False) == [Chop(COPIES, 4)]
    assert lost.state_of(0).term == 0
