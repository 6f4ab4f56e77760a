"""Confirmations with outdated tags do not leave a gate closed.

These stories run without audits, because an audit would open the gate.
"""

from collections.abc import Iterable

from brokerd.protocols.delta_tree.messages import RecoveryNotifier, SubscriptionConfirmation
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from tests.helpers.exchange import SECOND_NS, Exchange, blob

ANY = blob(kind="a")


def without_audit(links: Iterable[tuple[int, int]]) -> Exchange:
    """Return brokers that never repeat requests on their own."""
    parameters = DeltaTreeParameters(delta=1, audit_interval_ns=1_000_000 * SECOND_NS)
    return Exchange(links, parameters=parameters)


def tagged(exchange: Exchange) -> list[int]:
    """Return the brokers that have tags in their routing tables."""
    return [
        number
        for number, core in exchange.cores.items()
        if core.statistics()["subscriptions_tagged"]
    ]


def test_a_waiting_broker_asks_again_after_the_tagging_broker_restarts() -> None:
    """Broker 2 confirms without 3, crashes, and loses the record that 3 is tagged.

    Broker 1 has the confirmation of broker 2 and waits for broker 4.
    """
    exchange = without_audit(((0, 1), (1, 2), (2, 3), (1, 4)))
    exchange.kill(3)
    exchange.advance(1)
    exchange.hold(1, 4)
    subscriber = exchange.client("s", 0)
    exchange.subscribe(subscriber, "true")
    exchange.kill(2)
    exchange.start(3)
    exchange.start(2)
    exchange.advance(5)
    exchange.release(1, 4)
    exchange.advance(5)
    assert subscriber.answers[-1].state == "started"
    assert tagged(exchange) == []
    publisher = exchange.client("p", 3, publishes=True)
    exchange.publish(publisher, 1, ANY)
    assert subscriber.got() == [1]


def told_before_the_answer() -> Exchange:
    """Deliver a notifier to the access broker before an outdated confirmation arrives.

    Access broker 0 has tags for 1 and all brokers behind 1 when 2 reports that 4 is aware of s. An
    older message from 1, still in flight, reports that 4 is not aware. Broker 1 receives the
    repeated notifier and forwards a duplicate to broker 0.
    """
    exchange = without_audit(((0, 1), (1, 2), (2, 3), (3, 4)))
    exchange.kill(4)
    exchange.advance(1)
    exchange.unreachable[0, 2] = None
    exchange.cut(0, 1)
    exchange.advance(1)
    exchange.subscribe(exchange.client("s", 0), "true")
    assert exchange.clients["s"].answers[-1].state == "started"
    exchange.unreachable.clear()
    exchange.hold(2, 1)
    exchange.mend(0, 1)
    exchange.hold(1, 0)
    exchange.release(2, 1)
    exchange.unreachable[1, 3] = None
    exchange.cut(1, 2)
    exchange.advance(1)
    return exchange


def test_a_notifier_received_before_a_stale_confirmation_still_counts() -> None:
    exchange = told_before_the_answer()
    assert [m for _, m in exchange.queues[1, 0] if isinstance(m, SubscriptionConfirmation)]
    exchange.hold(0, 2)
    exchange.start(4)
    exchange.advance(1)
    assert exchange.sent(2, 0, RecoveryNotifier)
    exchange.mend(1, 2)
    exchange.release(1, 0)
    exchange.release(0, 2)
    exchange.advance(5)
    assert tagged(exchange) == []
    publisher = exchange.client("p", 4, publishes=True)
    exchange.publish(publisher, 1, ANY)
    assert exchange.clients["s"].got() == [1]
