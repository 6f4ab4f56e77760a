"""Tests of a restarted broker's recovery on objects: the conditions of its end, its messages."""

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.errors import RemoteProtocolError, StorageCorrupt
from brokerd.protocols.delta_tree.messages import (
    BranchReply,
    BranchRequest,
    RecoveryFlag,
    SyncEnd,
)
from brokerd.protocols.delta_tree.recovery import COLD_START, COMPLETE, RECOVERY, Recovery
from brokerd.protocols.delta_tree.sessions import Reach
from brokerd.protocols.interface import Change, Commit

BROKER, NEIGHBOUR, BEYOND = 0, 1, 2
UNWRITTEN = Change("routing", "2.1.1", "a row")


class Restarted:
    """A recovering broker with a neighbour, and a broker behind the neighbour."""

    def __init__(
        self, lineage: int = 0, complete: object = None, newcomers: int = 9, broker: int = BROKER
    ) -> None:
        self.sent: list[tuple[int, Any]] = []
        self.synchronised: list[int] = []
        self.records: list[str] = []
        self.deadlines: dict[Any, int | None] = {}
        self.nodes = {number: self.node(number) for number in (NEIGHBOUR, BEYOND)}
        self.rows: dict[int, Any] = {}
        self.commits: list[Commit] = []
        state: Any = SimpleNamespace(
            broker=broker,
            recovering=False,
            log_is_read=True,
            newcomers=newcomers,
            neighbourhood=SimpleNamespace(neighbours={broker: [NEIGHBOUR]}),
            parameters=SimpleNamespace(cold_start_after_ns=30),
            deadlines=SimpleNamespace(
                set=self.deadlines.__setitem__, cancel=lambda key: self.deadlines.pop(key, None)
            ),
            machine=SimpleNamespace(
                now_ns=5,
                send=lambda peer, message: self.sent.append((peer, message)),
                record=lambda name, **_: self.records.append(name),
                emit=self.commits.append,
            ),
        )
        sessions: Any = SimpleNamespace(
            nodes=self.nodes,
            node=self.nodes.__getitem__,
            usable=lambda: [each for each in self.nodes.values() if each.active and each.ready],
        )
        table = SimpleNamespace(unconfirmed=self.rows)

        class Subscriptions:
            def __len__(self) -> int:
                return 3

            synchronise = staticmethod(lambda node: self.synchronised.append(node.broker))
            list_unwritten = staticmethod(lambda: [UNWRITTEN])

        subscriptions: Any = Subscriptions()
        subscriptions.table = table
        self.state = state
        self.recovery = Recovery(state, sessions, subscriptions)
        rows = {} if complete is None else {RECOVERY: {COMPLETE: complete}}
        assert not self.recovery.begin(rows, lineage)

    @staticmethod
    def node(number: int) -> Any:
        return SimpleNamespace(
            broker=number, ready=True, active=number == NEIGHBOUR, recovering=True,
            synchronised=False, complete=False, reach=Reach.UNREACHABLE,
            branch_requested=0, branch_requests=0, branch_awaited=False, branch_complete=False,
        )  # fmt: skip


def test_it_ends_after_the_subscriptions_of_a_complete_neighbour() -> None:
    broker = Restarted()
    assert not broker.recovery.on_sync_end(NEIGHBOUR, SyncEnd(recovering=True))
    assert not broker.recovery.on_recovery_flag(BEYOND, RecoveryFlag(recovering=False))
    assert broker.state.recovering
    assert broker.deadlines == {(COLD_START, -1): 35}
    assert broker.recovery.on_sync_end(NEIGHBOUR, SyncEnd(recovering=False))
    assert not broker.state.recovering
    assert broker.deadlines == {}
    assert broker.records == ["recovered"]
    assert not broker.recovery.on_sync_end(NEIGHBOUR, SyncEnd(recovering=False))


def test_each_condition_of_its_end_is_needed() -> None:
    for is_read, is_accepted, is_recovering in product((True, False), repeat=3):
        broker = Restarted()
        broker.state.log_is_read = is_read
        broker.rows[1] = SimpleNamespace(accepted=is_accepted)
        message = SyncEnd(recovering=is_recovering)
        ends = is_read and is_accepted and not is_recovering
        assert broker.recovery.on_sync_end(NEIGHBOUR, message) == ends
        assert broker.state.recovering == (not ends)


@pytest.mark.parametrize("is_ready", [True, False])
@pytest.mark.parametrize("is_recovering", [True, False])
@pytest.mark.parametrize("is_synchronised", [True, False])
@pytest.mark.parametrize("is_read", [True, False])
def test_a_cold_start_waits_for_the_log_and_for_brokers_in_reach(
    is_ready: bool, is_recovering: bool, is_synchronised: bool, is_read: bool
) -> None:
    broker = Restarted()
    broker.state.log_is_read = is_read
    broker.nodes[NEIGHBOUR].synchronised = is_synchronised
    broker.nodes[BEYOND].ready = is_ready
    broker.nodes[BEYOND].recovering = is_recovering
    broker.state.machine.now_ns = 35
    goes_on = is_read and is_synchronised and not (is_ready and not is_recovering)
    assert broker.recovery.cold_start() == goes_on
    assert broker.state.recovering == (not goes_on)
    assert broker.deadlines == ({} if goes_on else {(COLD_START, -1): 65})
    assert broker.records == (["cold_start", "recovered"] if goes_on else [])
    if goes_on:
        assert not broker.recovery.cold_start()


@pytest.mark.parametrize(
    "reach, can_start",
    [(Reach.UNREACHABLE, True), (Reach.TRYING, False), (Reach.NOT_WANTED, False)],
    ids=str,
)
def test_a_neighbour_without_a_session_is_known_to_be_unreachable(
    reach: Reach, can_start: bool
) -> None:
    broker = Restarted()
    broker.nodes[NEIGHBOUR].ready = False
    broker.nodes[NEIGHBOUR].reach = reach
    assert broker.recovery.cold_start() == can_start


def test_its_end_is_announced_to_every_broker_with_a_session() -> None:
    """Only active sessions carry subscriptions, so only these end with a SyncEnd."""
    broker = Restarted()
    for number, active, ready in ((3, False, True), (4, True, False), (5, False, False)):
        node = broker.nodes[number] = broker.node(number)
        node.active, node.ready = active, ready
    broker.nodes[BEYOND].ready = False
    assert broker.recovery.on_sync_end(NEIGHBOUR, SyncEnd(recovering=False))
    assert broker.sent == [
        (NEIGHBOUR, SyncEnd(recovering=False)),
        (3, RecoveryFlag(recovering=False)),
    ]
    assert broker.synchronised == [NEIGHBOUR]


LATER_RECOVERIES: dict[str, dict[str, Any]] = {
    "a newcomer": {"broker": 9, "complete": 0},
    "a broker with a loss": {"lineage": 7, "complete": 7},
}
LOSSES: dict[str, dict[str, Any]] = {
    "an empty disk": {"lineage": 7},
    "an older copy of its disk": {"lineage": 7, "complete": 5},
    "no parent": {"newcomers": BROKER},
}


@pytest.mark.parametrize("state", LATER_RECOVERIES.values(), ids=LATER_RECOVERIES)
def test_a_broker_that_once_had_all_subscriptions_continues_alone(state: dict[str, Any]) -> None:
    broker = Restarted(**state)
    broker.nodes[NEIGHBOUR].synchronised = True
    broker.recovery.exchange_branches()
    assert broker.sent == []
    assert broker.recovery.cold_start()
    assert broker.commits == []


def test_a_newcomer_recovers_from_its_parent_alone() -> None:
    broker = Restarted(broker=9)
    broker.nodes[BEYOND].complete = broker.nodes[NEIGHBOUR].synchronised = True
    assert not broker.recovery.end_if_complete()
    assert not broker.recovery.cold_start()
    broker.recovery.exchange_branches()
    assert broker.sent == []
    assert broker.recovery.on_sync_end(NEIGHBOUR, SyncEnd(recovering=False))
    assert broker.commits == [Commit((UNWRITTEN, Change(RECOVERY, COMPLETE, 0)), None)]


def test_a_newcomer_requests_branches_once_its_parent_has_left() -> None:
    broker, child = Restarted(broker=9), 12
    broker.recovery.exchange_branches()
    assert broker.recovery.exchanges_branches
    broker.nodes[child] = broker.node(child)
    broker.state.neighbourhood.neighbours[9] = [child]
    broker.recovery.exchange_branches()
    assert broker.sent == [(child, BranchRequest(1))]


@pytest.mark.parametrize("state", LOSSES.values(), ids=LOSSES)
def test_a_broker_that_lost_its_disk_recovers_from_all_brokers(state: dict[str, Any]) -> None:
    broker = Restarted(**state)
    assert not broker.recovery.on_sync_end(NEIGHBOUR, SyncEnd(recovering=False))
    assert not broker.recovery.cold_start()
    for _ in range(2):
        broker.recovery.exchange_branches()
        assert broker.sent == [(NEIGHBOUR, BranchRequest(1))]
    broker.recovery.on_branch_reply(NEIGHBOUR, BranchReply(7))
    assert not broker.recovery.end_if_complete()
    broker.recovery.on_branch_reply(NEIGHBOUR, BranchReply(1))
    assert broker.recovery.end_if_complete()
    row = Change(RECOVERY, COMPLETE, state.get("lineage", 0))
    assert broker.commits == [Commit((UNWRITTEN, row), None)]


def test_a_branch_is_complete_once_all_branches_behind_it_have_replied_anew() -> None:
    broker = Restarted()
    broker.nodes[3] = broker.node(3)
    broker.state.neighbourhood.neighbours[BROKER].append(3)
    for number in (1, 2):
        broker.recovery.on_branch_request(NEIGHBOUR, BranchRequest(number))
        broker.recovery.exchange_branches()
        assert broker.sent.pop() == (3, BranchRequest(number))
    broker.recovery.on_branch_reply(3, BranchReply(1))
    broker.recovery.exchange_branches()
    assert broker.sent == []
    broker.recovery.on_branch_reply(3, BranchReply(2))
    broker.recovery.exchange_branches()
    assert broker.sent == [(NEIGHBOUR, BranchReply(2))]
    assert not broker.recovery.exchanges_branches
    broker.recovery.on_branch_request(3, BranchRequest(1))
    broker.nodes[NEIGHBOUR].ready = False
    broker.recovery.exchange_branches()
    assert len(broker.sent) == 1
    assert broker.recovery.exchanges_branches


def test_brokers_that_are_no_neighbours_exchange_no_branches() -> None:
    broker = Restarted()
    with pytest.raises(RemoteProtocolError, match="no neighbour"):
        broker.recovery.on_branch_request(BEYOND, BranchRequest(1))
    with pytest.raises(RemoteProtocolError, match="no neighbour"):
        broker.recovery.on_branch_reply(BEYOND, BranchReply(1))
    with pytest.raises(RemoteProtocolError, match="again"):
        broker.recovery.on_branch_request(NEIGHBOUR, BranchRequest(0))


def test_a_damaged_row_of_the_first_recovery_is_refused() -> None:
    with pytest.raises(StorageCorrupt, match="no lineage"):
        Restarted(lineage=7, complete="x")
