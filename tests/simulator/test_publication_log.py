"""Tests of the publication log: acknowledged publications arrive despite later failures."""

import pytest

from brokerd.protocols.delta_tree.definition import LOG
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.protocols.delta_tree.publication_log import _COUNT
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.simulator.world.handles import PublicationHandle
from tests.helpers.cluster import STEADY, chain
from tests.helpers.delta_tree_bugs import Mutant, plant_mutants

LOGGED = DeltaTreeParameters(delta=1, publication_log=True)


def _start(parameters: DeltaTreeParameters = LOGGED) -> SimulatedCluster:
    return SimulatedCluster(chain("p", "b", "s"), network=STEADY, parameters=parameters).start()


def _missing_after_publisher_and_broker_die() -> list[PublicationHandle]:
    """Return the missing publications after a crash of p, the only holder of some of them."""
    cluster = _start()
    subscriber = cluster.subscribe("s")
    publisher = cluster.client("p-p", "p", publishes=True)
    cluster.run_until_quiet()
    sent = [cluster.publish("p", n=0)]
    cluster.run_until_quiet()
    for name in ("b", "s"):
        cluster.broker(name).kill()
    sent += [cluster.publish("p", n=n) for n in range(1, 5)]
    while len(publisher.core.outgoing):
        cluster.run_for(0.0005)
    publisher.leave()
    cluster.broker("p").restart()
    for name in ("b", "s"):
        cluster.broker(name).start()
    cluster.run_for(90)
    return [publication for publication in sent if publication not in subscriber.received]


def test_acknowledged_publications_survive_their_publisher_and_broker() -> None:
    assert not _missing_after_publisher_and_broker_die()


def test_publications_acknowledged_before_they_are_durable_are_lost() -> None:
    with plant_mutants([Mutant.ACKNOWLEDGED_BEFORE_DURABLE]):
        assert _missing_after_publisher_and_broker_die()


def test_a_log_that_releases_unconfirmed_publications_causes_a_gap() -> None:
    with (
        pytest.raises(InvariantViolated, match=r"gap: s1-s/1 got .* without 2, 3, 4"),
        plant_mutants([Mutant.LOG_RELEASED_ON_APPEND]),
    ):
        _missing_after_publisher_and_broker_die()


def test_without_the_log_nothing_is_acknowledged_that_is_not_delivered() -> None:
    cluster = _start(DeltaTreeParameters(delta=1))
    cluster.subscribe("s")
    publisher = cluster.client("p-p", "p", publishes=True)
    cluster.run_until_quiet()
    for name in ("b", "s"):
        cluster.broker(name).kill()
    cluster.publish("p", n=1)
    cluster.run_for(5)
    assert len(publisher.core.outgoing)


def test_a_broker_completes_logged_publications_of_a_detached_publisher() -> None:
    """The broker crashes and has on disk the publications of a publisher that never returns."""
    cluster = _start()
    subscriber = cluster.subscribe("s")
    publisher = cluster.client("p-p", "p", publishes=True)
    cluster.run_until_quiet()
    cluster.broker("s").absorb()
    sent = [cluster.publish("p", n=n) for n in range(3)]
    while len(publisher.core.outgoing):
        cluster.run_for(0.001)
    cluster.population.detach("p-p")
    cluster.run_for(0.5)
    assert publisher.detached
    cluster.broker("p").restart()
    cluster.broker("s").release()
    cluster.run_for(1)
    late = cluster.subscribe("b")
    cluster.run_for(1)
    assert late.started
    assert subscriber.received == sent


def test_publications_repeated_after_a_crash_are_delivered_once_and_in_order() -> None:
    """The log returns publications that had arrived; newer publications queue behind them."""
    cluster = _start()
    subscriber = cluster.subscribe("s")
    cluster.client("p-p", "p", publishes=True)
    cluster.run_until_quiet()
    cluster.broker("s").absorb()
    sent = [cluster.publish("p", n=n) for n in range(10)]
    cluster.run_for(0.3)
    cluster.broker("p").restart()
    sent += [cluster.publish("p", n=n) for n in range(10, 20)]
    cluster.run_for(0.3)
    cluster.broker("s").release()
    cluster.run_until_quiet()
    cluster.oracle.judge_end()
    assert subscriber.received == sent


def test_publications_acknowledged_in_recovery_are_published_after_their_session() -> None:
    """A recovering broker publishes nothing, but acknowledges publications once durable."""
    cluster = _start()
    subscriber = cluster.subscribe("s")
    publisher = cluster.client("p-p", "p", publishes=True)
    cluster.run_until_quiet()
    cluster.link("p", "b").cut()
    cluster.link("p", "s").cut()
    cluster.broker("p").restart()
    cluster.run_for(5)
    sent = [cluster.publish("p", n=n) for n in range(3)]
    while len(publisher.core.outgoing):
        cluster.run_for(0.001)
    assert cluster.broker("p").status().state == "recovering"
    publisher.leave()
    cluster.link("p", "b").heal()
    cluster.link("p", "s").heal()
    cluster.run_until_quiet()
    assert subscriber.received == sent


def test_a_publisher_waits_when_too_much_is_acknowledged_and_not_done() -> None:
    cluster = _start(DeltaTreeParameters(delta=1, publication_log=True, queue_limit=3))
    subscriber = cluster.subscribe("s")
    publisher = cluster.client("p-p", "p", publishes=True)
    cluster.run_until_quiet()
    for name in ("b", "s"):
        cluster.broker(name).kill()
    sent = [cluster.publish("p", n=n) for n in range(8)]
    cluster.run_for(1)
    assert len(publisher.core.outgoing) == 5
    for name in ("b", "s"):
        cluster.broker(name).start()
    cluster.run_until_quiet()
    cluster.oracle.judge_end()
    assert subscriber.received == sent
    assert not len(publisher.core.outgoing)


def test_a_subscription_from_before_the_crash_starts_after_the_recovered_log() -> None:
    """The log's numbers enter the start cut, as the numbers of a returning publisher do."""
    cluster = _start()
    cluster.subscribe("s", "n = 1", "z")
    cluster.client("p-p", "p", publishes=True)
    cluster.run_until_quiet()
    cluster.broker("s").absorb()
    cluster.publish("p", n=1)
    cluster.publish("p", n=2)
    cluster.run_for(0.1)
    cluster.broker("p").restart()
    late = cluster.subscribe("b", "true", "late")
    cluster.run_for(0.1)
    cluster.broker("s").release()
    cluster.run_until_quiet()
    three = cluster.publish("p", n=3)
    cluster.run_until_quiet()
    cluster.oracle.judge_end()
    assert late.received == [three]


def _publish_before_the_log_is_read() -> None:
    """Reconnect the publisher after a restart, before the slow disk has returned the log."""
    cluster = _start()
    subscriber = cluster.subscribe("s")
    publisher = cluster.client("p-p", "p", publishes=True)
    cluster.run_until_quiet()
    cluster.broker("s").absorb()
    sent = [cluster.publish("p", n=n) for n in range(10)]
    while len(publisher.core.outgoing):
        cluster.run_for(0.001)
    broker = cluster.broker("p")
    broker.kill()
    broker.start()
    lane = cluster.brokers[cluster.topology.number_of("p")].disk.log_lane
    lane.hold()
    sent += [cluster.publish("p", n=n) for n in range(10, 15)]
    cluster.run_for(3)
    assert broker.status().state == "recovering"
    lane.release()
    cluster.broker("s").release()
    cluster.run_until_quiet()
    cluster.oracle.judge_end()
    assert subscriber.received == sent


def test_a_broker_publishes_nothing_before_its_log_is_read() -> None:
    _publish_before_the_log_is_read()


@pytest.mark.parametrize("bug", [Mutant.CLIENTS_BEFORE_LOG, Mutant.RECOVERED_BEFORE_LOG])
def test_a_broker_that_does_not_wait_for_its_log_is_detected(bug: Mutant) -> None:
    with pytest.raises(AssertionError), plant_mutants([bug]):
        _publish_before_the_log_is_read()


def test_a_record_names_finished_numbers_of_sources_with_older_records_only() -> None:
    """The records of all other sources are released: a crash needs no number of theirs."""
    cluster = _start()
    cluster.subscribe("s")
    for name in ("p-p", "p-q"):
        cluster.client(name, "p", publishes=True)
    cluster.run_until_quiet()
    disk = cluster.brokers[cluster.topology.number_of("p")].disk

    def count_marks() -> list[int]:
        return [_COUNT.unpack_from(record)[0] for record in disk.records_of(LOG)[1]]

    for name in ("p-p", "p-q", "p-p"):
        cluster.publish("p", client=name, n=0)
        cluster.run_until_quiet()
        assert not any(count_marks())
    cluster.broker("s").absorb()
    for name in ("p-q", "p-p"):
        cluster.publish("p", client=name, n=1)
        cluster.run_for(0.3)
    assert count_marks()[-2:] == [0, 0]
