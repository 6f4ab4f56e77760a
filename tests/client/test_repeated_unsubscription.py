"""Tests of unsubscriptions: the request is repeated until confirmed, even after restarts."""

from brokerd.client.core import ClientCore
from brokerd.client.events import SubscriptionEnded
from brokerd.client.restart import restart, state_of
from brokerd.model.client_messages import (
    Connected,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
)
from brokerd.model.predicate import EVERYTHING


def test_a_restarted_client_asks_again_for_the_end_of_its_subscription() -> None:
    core = ClientCore("c", publishes=False, keeps_state=True)
    core.on_established()
    core.on_message(Connected(None, 1))
    ended, kept = core.subscribe(EVERYTHING), core.subscribe(EVERYTHING)
    for number in (ended, kept):
        core.on_message(Subscribed(number, "started"))
    core.unsubscribe(ended)
    again = restart(state_of(core))
    again.on_established()
    again.on_message(Connected(None, 2))
    again.revision.on_saved(again.revision.current)
    _, *said = again.messages_to_send()
    assert said == [Unsubscribe(ended), Subscribe(kept, EVERYTHING)]
    assert again.on_message(Unsubscribed(ended)) == [SubscriptionEnded(ended)]
    assert not again.subscriptions.ending
