"""Tests of the partition table: announcement, duration and refused entries."""

from itertools import pairwise

import pytest

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import PartitionId
from brokerd.protocols.delta_tree.messages import (
    PartitionGone,
    PartitionNew,
    PartitionNumbers,
    RecoveryNotifier,
)
from brokerd.protocols.delta_tree.partition_table import TOMBSTONE_RANGES, Detector
from brokerd.protocols.interface import (
    MessageReceived,
    OpenFailed,
    Send,
    TopologyGrown,
    TopologyShrunk,
)
from tests.helpers.delta_tree_bugs import Mutant, plant_mutants
from tests.helpers.exchange import Exchange, blob


def line(brokers, **settings):
    """Return a chain 0–1–2–…"""
    return Exchange(tuple(pairwise(range(brokers))), **settings)


def table(exchange, broker):
    """Return the partition table of a broker as pairs (detector, nodes)."""
    return sorted((pid.detector, pid.nodes) for pid in exchange.cores[broker]._partitions)


def kill(exchange, *brokers):
    """Crash brokers and wait until all others have detected the crashes."""
    for broker in brokers:
        exchange.kill(broker)
    exchange.settle()
    exchange.advance(1)


def test_each_broker_that_becomes_unreachable_makes_a_partition_of_its_own():
    """Paper: [DFT11] §III lines 337-346."""
    exchange = line(5, delta=2)
    kill(exchange, 1, 2, 3)
    assert table(exchange, 0) == [(0, (1,)), (0, (1, 2)), (0, (1, 2, 3))]
    numbers = [partition.number for partition in exchange.cores[0]._partitions]
    assert numbers == sorted(set(numbers))
    assert exchange.records.count((0, "partition_new")) >= 3


def test_a_partition_is_announced_within_twice_delta_and_no_farther():
    """Paper: [DFT11] §IV lines 362-370 (D_PT), §VIII lines 937-944."""
    exchange = line(8)
    kill(exchange, 5)
    for broker in (2, 3, 4):
        assert (4, (5,)) in table(exchange, broker), broker
    for broker in (0, 1):
        assert table(exchange, broker) == [], broker


def test_the_mutant_that_spreads_partitions_within_delta_misses_farther_brokers():
    with plant_mutants([Mutant.PARTITIONS_SPREAD_DELTA]):
        exchange = line(8)
    kill(exchange, 5)
    assert (4, (5,)) in table(exchange, 3)
    assert table(exchange, 2) == []


def test_a_partition_is_withdrawn_everywhere_when_its_broker_is_back():
    exchange = line(6)
    kill(exchange, 3)
    assert table(exchange, 1)
    exchange.start(3)
    exchange.advance(2)
    for broker in range(6):
        assert table(exchange, broker) == [], broker
    assert (2, "partition_gone") in exchange.records


def test_a_broker_that_was_away_is_brought_up_to_date_when_its_session_is_ready():
    """Broker 1 misses both the start of a partition and the end of another."""
    exchange = line(6, delta=2)
    kill(exchange, 4)
    assert (3, (4,)) in table(exchange, 1)
    exchange.kill(1)
    exchange.start(4)
    exchange.advance(2)
    kill(exchange, 5)
    exchange.start(1)
    exchange.advance(6)
    assert table(exchange, 1) == table(exchange, 2) == [(4, (5,))]


def test_a_withdrawal_prevails_over_an_announcement_in_either_order():
    exchange = line(4)
    core, session = exchange.cores[1], exchange.sessions[1, 2]
    pid = PartitionId(2, 1, 7, (3,))
    gone = PartitionGone((PartitionNumbers(2, 1, 7, 7),), ((2, 1),))
    core.handle(MessageReceived(2, session, gone), 0)
    answer = core.handle(MessageReceived(2, session, PartitionNew((pid,), ((2, 1),))), 0)
    assert answer == [], "a detector need not be told of its own"
    assert (2, (3,)) not in table(exchange, 1)


def test_a_new_incarnation_of_the_detector_withdraws_old_partitions():
    exchange = line(6)
    kill(exchange, 3)
    assert (2, (3,)) in table(exchange, 0)
    exchange.kill(2)
    exchange.start(3)
    exchange.start(2)
    exchange.advance(3)
    for broker in range(6):
        assert table(exchange, broker) == [], broker


def test_an_announcement_of_an_old_incarnation_is_ignored():
    exchange = line(4)
    core, session = exchange.cores[1], exchange.sessions[1, 2]
    newer = PartitionGone((PartitionNumbers(2, 5, 0, 0),), ((2, 1),))
    core.handle(MessageReceived(2, session, newer), 0)
    old = PartitionNew((PartitionId(2, 4, 1, (3,)),), ((2, 1),))
    assert core.handle(MessageReceived(2, session, old), 0) == []
    assert (2, (3,)) not in table(exchange, 1)


def test_a_stale_announcement_is_answered_with_a_withdrawal():
    exchange = line(4)
    core = exchange.cores[1]
    pid = PartitionId(2, 1, 7, (3,))
    gone = PartitionGone((PartitionNumbers(2, 1, 7, 7),), ((2, 1),))
    core.handle(MessageReceived(2, exchange.sessions[1, 2], gone), 0)
    stale = PartitionNew((pid,), ((2, 1),))
    answer = core.handle(MessageReceived(0, exchange.sessions[1, 0], stale), 0)
    assert answer == [Send(0, PartitionGone((PartitionNumbers(2, 1, 7, 7),), ((2, 1, 0),)))]


def test_an_unreachable_newcomer_is_not_announced_as_a_partition():
    """Brokers farther away do not have the newcomer in their topology yet."""
    exchange = line(3)
    effects = exchange.handle(1, TopologyGrown(3, 1))
    assert not [e for e in effects if isinstance(e, Send)]
    exchange.handle(1, OpenFailed(3, "refused"))
    assert table(exchange, 0) == table(exchange, 1) == []


def test_partitions_of_a_departed_leaf_are_removed():
    exchange = line(4)
    told = PartitionNew((PartitionId(3, 1, 1, (2,)),), ((3, 2, 1),))
    exchange.handle(1, MessageReceived(2, exchange.sessions[1, 2], told))
    exchange.settle()
    assert (3, (2,)) in table(exchange, 1)
    assert (3, (2,)) not in table(exchange, 0), "three links from the detector"
    exchange.handle(1, TopologyShrunk(3))
    assert table(exchange, 1) == []
    over = PartitionGone((PartitionNumbers(3, 1, 1, 1),), ((3, 2),))
    assert exchange.handle(1, MessageReceived(2, exchange.sessions[1, 2], told)) == [Send(2, over)]
    assert table(exchange, 1) == []


def test_a_distant_broker_receives_the_withdrawal_of_partitions_of_a_departed_leaf():
    """Broker 4 is 2δ links from leaf 0 and is cut off when the leaf departs."""
    exchange = line(5, delta=2)
    exchange.cut(0, 1)
    exchange.advance(1)
    assert table(exchange, 4) == [(0, (1,)), (1, (0,))]
    for other in (1, 2, 3):
        exchange.unreachable[other, 4] = None
    exchange.cut(3, 4)
    exchange.advance(1)
    exchange.unreachable.clear()
    exchange.leave(0)
    assert (0, (1,)) in table(exchange, 4)
    exchange.mend(3, 4)
    exchange.advance(10)
    assert [table(exchange, broker) for broker in range(1, 5)] == [[], [], [], []]


def test_a_path_from_a_departed_leaf_to_elsewhere_is_refused():
    exchange = line(4)
    exchange.handle(1, TopologyShrunk(3))
    told = PartitionNew((PartitionId(3, 1, 1, (2,)),), ((3, 2),))
    with pytest.raises(RemoteProtocolError):
        exchange.handle(1, MessageReceived(2, exchange.sessions[1, 2], told))


def gone_while_a_notifier_is_under_way():
    """Hold a notifier at broker 1 after broker 2 was unreachable during the subscription.

    Paper: [DFT11] §VIII-A lines 896-900.
    """
    exchange = line(4)
    exchange.cut(1, 2)
    exchange.unreachable[1, 3] = None
    exchange.cut(1, 3)
    exchange.advance(1)
    exchange.subscribe(exchange.client("s", 0), "kind = 'a'")
    assert exchange.clients["s"].answers[-1].state == "started"
    assert (1, (2,)) in table(exchange, 0)
    exchange.hold(1, 0)
    exchange.mend(1, 2)
    exchange.unreachable.clear()
    exchange.advance(2)
    assert [m for _, m in exchange.queues[1, 0] if isinstance(m, RecoveryNotifier)]
    return exchange


def test_a_partition_is_withdrawn_after_confirmation_of_its_notifiers():
    exchange = gone_while_a_notifier_is_under_way()
    assert (1, (2,)) in table(exchange, 1)
    exchange.release(1, 0)
    exchange.advance(2)
    assert table(exchange, 1) == table(exchange, 0) == []
    source = exchange.client("p", 3, publishes=True)
    exchange.publish(source, 1, blob(kind="a"))
    assert exchange.clients["s"].got() == [1]


def test_the_early_withdrawal_mutant_drops_a_partition_before_its_gate_opens():
    with plant_mutants([Mutant.GONE_EARLY]):
        exchange = gone_while_a_notifier_is_under_way()
    assert (1, (2,)) not in table(exchange, 1)


def test_tombstones_are_bounded_and_cover_every_ended_partition():
    detector = Detector((1, 0), 1)
    detector.live = {number: PartitionId(1, 1, number, (2,)) for number in (10, 501)}
    for number in range(2, 1_000, 2):
        if number != 10:
            detector.end(number, number)
    assert len(detector.ended) <= TOMBSTONE_RANGES
    assert set(detector.live) == {10, 501}
    assert not any(detector.is_gone(number) for number in detector.live)
    assert all(detector.is_gone(number) for number in range(2, 1_000, 2) if number != 10)


PATH = ((2, 1),)
WRONG = {
    "no detector's path": PartitionNew((PartitionId(2, 1, 1, (3,)),), ()),
    "a path that ends elsewhere": PartitionNew((PartitionId(2, 1, 1, (3,)),), ((2, 3),)),
    "a detector that is too far away": PartitionNew(
        (PartitionId(9, 1, 1, (10,)),), ((9, 8, 3, 2, 1),)
    ),
    "a path that comes back": PartitionNew((PartitionId(0, 1, 1, (4,)),), ((0, 3, 2, 1),)),
    "no brokers": PartitionNew((PartitionId(2, 1, 1, ()),), PATH),
    "more brokers than anybody reaches past": PartitionNew(
        (PartitionId(2, 1, 1, (3, 4, 5)),), PATH
    ),
    "brokers that form no path": PartitionNew((PartitionId(2, 1, 1, (0,)),), PATH),
    "a broker twice": PartitionNew((PartitionId(2, 1, 1, (3, 3)),), PATH),
    "a foreign broker in a place that is known": PartitionNew((PartitionId(2, 1, 1, (77,)),), PATH),
    "a known broker in a strange place": PartitionNew((PartitionId(2, 1, 1, (3, 0)),), PATH),
    "a broker number out of range": PartitionNew((PartitionId(2, 1, 1, (3, 1 << 20)),), PATH),
    "no number": PartitionNew((PartitionId(2, 1, 0, (3,)),), PATH),
    "no incarnation": PartitionNew((PartitionId(2, 0, 1, (3,)),), PATH),
    "our own partition": PartitionNew((PartitionId(1, 1, 99, (2,)),), ((1, 2, 1),)),
    "an incarnation that leaps": PartitionNew((PartitionId(2, 1 << 21, 1, (3,)),), PATH),
    "withdrawn, of an incarnation that leaps": PartitionGone(
        (PartitionNumbers(2, 1 << 21, 0, 0),), PATH
    ),
    "withdrawn, of nobody": PartitionGone((PartitionNumbers(2, 1, 1, 1),), ()),
    "withdrawn backwards": PartitionGone((PartitionNumbers(2, 1, 5, 4),), PATH),
    "withdrawn from zero": PartitionGone((PartitionNumbers(2, 1, 0, 4),), PATH),
}


@pytest.mark.parametrize("message", WRONG.values(), ids=WRONG)
def test_a_partition_that_cannot_be_is_refused_and_the_broker_lives(message):
    exchange = line(4)
    exchange.subscribe(exchange.client("s", 0), "kind = 'a'")
    core = exchange.cores[1]
    before = table(exchange, 1)
    with pytest.raises(RemoteProtocolError) as caught:
        core.handle(MessageReceived(2, exchange.sessions[1, 2], message), 0)
    assert len(str(caught.value)) < 400
    assert table(exchange, 1) == before
    source = exchange.client("p", 3, publishes=True)
    exchange.publish(source, 1, blob(kind="a"))
    assert exchange.clients["s"].got() == [1], "life goes on"


def test_a_detectors_incarnation_that_leaps_is_refused():
    exchange = line(4)
    core, session = exchange.cores[1], exchange.sessions[1, 2]
    for message in (
        PartitionNew((PartitionId(2, 1 << 21, 1, (3,)),), PATH),
        PartitionGone((PartitionNumbers(2, 1 << 21, 0, 0),), PATH),
    ):
        with pytest.raises(RemoteProtocolError, match="leaps from"):
            core.handle(MessageReceived(2, session, message), 0)


def test_a_reused_partition_number_is_refused():
    exchange = line(6, delta=2)
    core, session = exchange.cores[1], exchange.sessions[1, 2]
    core.handle(MessageReceived(2, session, PartitionNew((PartitionId(2, 1, 9, (3,)),), PATH)), 0)
    other = PartitionNew((PartitionId(2, 1, 9, (3, 4)),), PATH)
    with pytest.raises(RemoteProtocolError, match="no partition"):
        core.handle(MessageReceived(2, session, other), 0)
