"""An access broker announces the end of a subscription only after the end is on disk."""

import pytest

from brokerd.model.client_messages import Connect, Detach, Unsubscribe, Unsubscribed
from brokerd.model.identity import SubscriptionId
from brokerd.model.predicate import EVERYTHING
from brokerd.overlay.tree import PrimaryTree
from brokerd.protocols.delta_tree.core import DeltaTree
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.protocols.delta_tree.state import LocalSubscription, subscription_change
from brokerd.protocols.interface import (
    Commit,
    DeadlineReached,
    Effect,
    MessageReceived,
    Persisted,
    Send,
    SessionEstablished,
    Started,
)
from tests.helpers.cluster import chain
from tests.helpers.exchange import Exchange, blob, decode

LINGER_NS = 1_000


def _a_home_whose_client_does_not_ask_again() -> DeltaTree:
    """Return a broker whose client reconnected after a restart but has not subscribed again."""
    neighbourhood = PrimaryTree(chain("b1", "b2")).neighbourhood(0, 2)
    core = DeltaTree(
        0, neighbourhood, DeltaTreeParameters(delta=1, client_linger_ns=LINGER_NS), decode
    )
    row = subscription_change(
        LocalSubscription("s", 1, SubscriptionId(0, 1, 1), EVERYTHING), started=True
    )
    core.handle(Started(2, True, {row.table: {row.key: row.value}}), 0)
    core.handle(SessionEstablished("s", 1, 1), 0)
    core.handle(MessageReceived("s", 1, Connect(False, 1, 1, 0, ())), 0)
    return core


def _given_up(core: DeltaTree) -> int:
    """Return the token of the commit that ends the subscription after the linger."""
    effects = core.handle(DeadlineReached(), LINGER_NS)
    (token,) = [effect.token for effect in effects if isinstance(effect, Commit)]
    assert token is not None
    return token


def _called_over(effects: list[Effect]) -> list[int]:
    messages = [effect.message for effect in effects if isinstance(effect, Send)]
    return [each.number for each in messages if isinstance(each, Unsubscribed)]


def test_an_unsubscription_during_an_eviction_waits_for_the_disk() -> None:
    core = _a_home_whose_client_does_not_ask_again()
    token = _given_up(core)
    assert _called_over(core.handle(MessageReceived("s", 1, Unsubscribe(1)), LINGER_NS)) == []
    assert _called_over(core.handle(Persisted(token), LINGER_NS)) == [1]


def test_a_detach_during_an_eviction_waits_for_the_disk() -> None:
    core = _a_home_whose_client_does_not_ask_again()
    token = _given_up(core)
    assert (
        _called_over(
            core.handle(MessageReceived("s", 1, Detach(drain=False, done_through=0)), LINGER_NS)
        )
        == []
    )
    assert _called_over(core.handle(Persisted(token), LINGER_NS)) == [0]


def test_an_unsubscription_after_an_eviction_is_confirmed_at_once() -> None:
    core = _a_home_whose_client_does_not_ask_again()
    core.handle(Persisted(_given_up(core)), LINGER_NS)
    assert _called_over(core.handle(MessageReceived("s", 1, Unsubscribe(1)), LINGER_NS)) == [1]


@pytest.mark.parametrize("ended", [1, 2, 3])
def test_the_end_of_a_subscription_ends_none_of_an_earlier_incarnation(ended: int) -> None:
    """Subscriptions 1 and 2 are from before two restarts of their broker, 3 is from now."""
    exchange = Exchange(((0, 1), (1, 2)))
    subscriber = exchange.client("s", 2)
    for number in (1, 2):
        exchange.subscribe(subscriber, f"kind = '{number}'", number)
    for _ in range(2):
        exchange.kill(2)
        exchange.start(2)
        exchange.advance(5)
    subscriber = exchange.client("s", 2)
    for number in (1, 2, 3):
        exchange.subscribe(subscriber, f"kind = '{number}'", number)
    exchange.say(subscriber, Unsubscribe(ended))
    exchange.advance(5)
    publisher = exchange.client("p", 0, publishes=True)
    exchange.publish(publisher, 1, *(blob(kind=f"{number}") for number in (1, 2, 3)))
    exchange.advance(5)
    received = [number for number in (1, 2, 3) if subscriber.got(number)]
    assert received == [number for number in (1, 2, 3) if number != ended]
