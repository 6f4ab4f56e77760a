"""An access broker confirms a recovery notifier only after the change is on disk."""

from brokerd.model.client_messages import Connect, Unsubscribe
from brokerd.model.identity import SourceId, SubscriptionId
from brokerd.model.predicate import EVERYTHING
from brokerd.overlay.tree import PrimaryTree
from brokerd.protocols.delta_tree.core import DeltaTree
from brokerd.protocols.delta_tree.messages import (
    NOTIFIER,
    PublicationConfirmation,
    RecoveryNotifier,
    Summary,
    Tag,
)
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.protocols.delta_tree.state import LocalSubscription, subscription_change
from brokerd.protocols.interface import (
    Commit,
    Effect,
    MessageReceived,
    Persisted,
    Send,
    SessionEstablished,
    Started,
)
from tests.helpers.cluster import chain
from tests.helpers.exchange import decode

HOME = SubscriptionId(0, 1, 1)
TAG = Tag((0, 1, 2, 3), 2, 1, 1, False)


def _a_home_that_does_not_hear_the_last_of_four() -> DeltaTree:
    tree = PrimaryTree(chain("b1", "b2", "b3", "b4"))
    core = DeltaTree(0, tree.neighbourhood(0, 2), DeltaTreeParameters(delta=1), decode)
    local = LocalSubscription("s", 1, HOME, EVERYTHING, tags=(TAG,))
    row = subscription_change(local, started=True)
    core.handle(Started(2, True, {row.table: {row.key: row.value}}), 0)
    core.handle(SessionEstablished(1, 1, 1), 0)
    core.handle(MessageReceived(1, 1, Summary((), False)), 0)
    return core


def _awaiting_sender(core: DeltaTree, emitter: int) -> list[Effect]:
    source = SourceId(emitter, NOTIFIER, 1)
    path = tuple(range(emitter, -1, -1))
    notifier = RecoveryNotifier(source, 1, path, HOME, (TAG,), (), (), ())
    return core.handle(MessageReceived(1, 1, notifier), 0)


def _done(effects: list[Effect]) -> list[int]:
    """Return the emitters of the confirmed notifiers."""
    messages = [effect.message for effect in effects if isinstance(effect, Send)]
    confirmations = [each for each in messages if isinstance(each, PublicationConfirmation)]
    return [source.broker for each in confirmations for source, _, _ in each.ranges]


def test_a_repeated_notifier_is_not_confirmed_before_the_commit() -> None:
    """Two brokers emit the same notifier; the gate that the first opened is not on disk yet."""
    core = _a_home_that_does_not_hear_the_last_of_four()
    first = _awaiting_sender(core, 1)
    (token,) = [effect.token for effect in first if isinstance(effect, Commit)]
    assert token is not None
    assert _done(first) == []
    assert _done(_awaiting_sender(core, 2)) == []
    assert _done(core.handle(Persisted(token), 0)) == [1, 2]


def test_a_notifier_of_an_ended_subscription_is_not_confirmed_before_the_commit() -> None:
    """After a crash the row of the subscription would exist again, with the gate closed."""
    core = _a_home_that_does_not_hear_the_last_of_four()
    core.handle(SessionEstablished("s", 2, 1), 0)
    core.handle(MessageReceived("s", 2, Connect(False, 1, 1, 0, ())), 0)
    ended = core.handle(MessageReceived("s", 2, Unsubscribe(1)), 0)
    (token,) = [effect.token for effect in ended if isinstance(effect, Commit)]
    assert token is not None
    assert _done(_awaiting_sender(core, 1)) == []
    assert _done(core.handle(Persisted(token), 0)) == [1]


def test_a_notifier_of_a_durable_change_is_confirmed_at_once() -> None:
    core = _a_home_that_does_not_hear_the_last_of_four()
    (token,) = [effect.token for effect in _awaiting_sender(core, 1) if isinstance(effect, Commit)]
    assert token is not None
    core.handle(Persisted(token), 0)
    assert _done(_awaiting_sender(core, 2)) == [2]
