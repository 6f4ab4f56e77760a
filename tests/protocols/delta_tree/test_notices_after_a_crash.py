"""A gap that a crashed access broker announced for a barrier may be announced again."""

import pytest

from brokerd.model.client_messages import Acknowledge, Connect, Notice, Subscribe
from brokerd.model.identity import PartitionId, SourceId, SubscriptionId
from brokerd.model.predicate import EVERYTHING
from brokerd.overlay.tree import PrimaryTree
from brokerd.protocols.delta_tree.core import DeltaTree
from brokerd.protocols.delta_tree.messages import (
    PublicationConfirmation,
    PublicationCopy,
    Summary,
    Tag,
)
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.protocols.delta_tree.state import LocalSubscription, subscription_change
from brokerd.protocols.interface import (
    Deliver,
    Event,
    MessageReceived,
    Persisted,
    Send,
    SessionEstablished,
    Started,
)
from tests.helpers.cluster import chain
from tests.helpers.exchange import blob, decode, run_of

SOURCE = SourceId(0, 0, 1)
TAG = Tag((1, 0), 1, 1, 1, False)
TOLD_THROUGH = 2


def _home_broker_after_a_crash() -> DeltaTree:
    """Return broker 1 of b1-b2-b3; its client is notified of the barrier through publication 2."""
    tree = PrimaryTree(chain("b1", "b2", "b3"))
    core = DeltaTree(1, tree.neighbourhood(1, 2), DeltaTreeParameters(delta=1), decode)
    local = LocalSubscription("s", 1, SubscriptionId(1, 1, 1), EVERYTHING, tags=(TAG,))
    local.late[SOURCE] = (1, TOLD_THROUGH, PartitionId(1, 1, 1, (0,)))
    row = subscription_change(local, started=True)
    core.handle(Started(2, True, {row.table: {row.key: row.value}}), 0)
    for event in (
        SessionEstablished(0, 1, 1),
        MessageReceived(0, 1, Summary((), False)),
        SessionEstablished("s", 2, 1),
        MessageReceived("s", 2, Connect(False, 1, 1, 0, ())),
        MessageReceived("s", 2, Subscribe(1, EVERYTHING)),
    ):
        _sent(core, event)
    return core


def _sent(core: DeltaTree, event: Event) -> list[object]:
    """Return the messages that an event makes a broker send, with an instantaneous disk."""
    sent: list[object] = []
    events = [event]
    while events:
        for effect in core.handle(events.pop(0), 0):
            if isinstance(effect, Send):
                sent.append(effect.message)
            elif isinstance(effect, Deliver):
                sent.append(effect.item)
            elif getattr(effect, "token", None) is not None:
                events.append(Persisted(effect.token))
    return sent


@pytest.mark.parametrize("last", [1, 2, 4], ids=["fewer", "the same", "more"])
def test_repeated_publications_are_announced_again_and_confirmed(last: int) -> None:
    core = _home_broker_after_a_crash()
    already = Acknowledge(SOURCE, 1, TOLD_THROUGH)
    _sent(core, MessageReceived("s", 2, already))
    again = run_of(SOURCE, 1, *[blob(n=n) for n in range(last)])
    sent = _sent(core, MessageReceived(0, 1, PublicationCopy(again, (0, 1))))
    (notice,) = [message for message in sent if isinstance(message, Notice)]
    assert notice.ranges == ((1, last),)
    sent = _sent(core, MessageReceived("s", 2, Acknowledge(SOURCE, 1, last)))
    assert PublicationConfirmation(((SOURCE, 1, last),)) in sent
