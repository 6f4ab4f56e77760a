"""The marks of durable, found in the events and effects of a core.

`PROTOCOL.md` names every mark at its rule.
"""

from collections.abc import Iterator, Sequence

from brokerd.model.client_messages import (
    ConsumedCommitted,
    Consuming,
    Deliveries,
    Gap,
    Silence,
)
from brokerd.model.identity import BrokerNumber
from brokerd.overlay.graph import OverlayGraph
from brokerd.protocols.durable.core import Durable
from brokerd.protocols.durable.fetching import FROM_STORE
from brokerd.protocols.durable.messages import Deferred, Fetch, Fetched, LetGo
from brokerd.protocols.durable.state import ARRIVING, DELIVERED, HOLDS
from brokerd.protocols.gryphon import LOG
from brokerd.protocols.gryphon.state import RELEASED
from brokerd.protocols.interface import (
    Chop,
    Commit,
    DeadlineReached,
    Deliver,
    Effect,
    Event,
    MessageReceived,
    Persisted,
    Send,
    Shutdown,
    Truncate,
)
from brokerd.protocols.parts.clients.own_subscriptions import SUBSCRIPTIONS
from brokerd.protocols.parts.decommissioning import DECOMMISSIONED
from brokerd.simulator.checks.marks import Mark
from brokerd.simulator.world.views import BrokerView

MARKS = (
    Mark("fetched", "a subscriber's broker requested missed publications", seeds=6),
    Mark("fetched-for-another", "a broker forwarded such a request", seeds=10),
    Mark("fetched-on-the-way", "an intermediate broker answered a request", seeds=15),
    Mark("answered-from-store", "a broker answered with events that had passed", seeds=10),
    Mark("deferred", "a request was answered in part, and repeated", seeds=500),
    Mark("released", "a pubend released events that all had acknowledged", seeds=2),
    Mark("matches-committed", "the delivered tick of a stream was written to disk", seeds=2),
    Mark("matches-chopped", "match records were truncated", seeds=2),
    Mark("matches-truncated", "a restart dropped matches behind the last commit", seeds=10),
    Mark("silence-said", "a client received the position of a stream", seeds=2),
    Mark("released-early", "a pubend released old events before all had acknowledged", seeds=10),
    Mark("gap-told", "a client received a gap", seeds=40),
    Mark("caught-up", "a client received missed publications from a remote pubend", seeds=10),
    Mark("token-kept", "a broker stored the token of a client", seeds=6),
    Mark("tokens-kept-together", "two clients' tokens shared a transaction", seeds=60),
    Mark("token-asked-again", "a client repeated the request for a committed token", seeds=12),
    Mark("token-kept-elsewhere", "a broker resumed from a token of another broker", seeds=20),
    Mark(
        "may-have-had", "a client received the possible deliveries of an earlier process", seeds=10
    ),
    Mark("subscription-came", "a subscription arrived from another broker", seeds=8),
    Mark("held", "a pubend kept a hold for a migrating subscription", seeds=8),
    Mark("let-go", "a broker released a subscription that had migrated", seeds=8),
    Mark("hold-over", "the hold of a subscription ended", seeds=8),
    Mark("given-up", "a broker continued without a decommissioned one", seeds=40),
    Mark("refused", "a decommissioned broker came back, and ended", seeds=40),
)


class DurableMarks:
    """See MarkObserver."""

    def __init__(self, graph: OverlayGraph) -> None:
        self.counts = {mark.name: 0 for mark in MARKS}
        self._answered: dict[BrokerNumber, int] = {}

    def step(self, broker: BrokerView, event: Event, effects: Sequence[Effect]) -> None:
        """See MarkObserver."""
        for name in _find_marks(broker, event, effects) if effects else ():
            self.counts[name] += 1
        assert isinstance(broker.core, Durable), f"{broker.core} is no core of durable"
        answered = broker.core.gryphon.counters[FROM_STORE]
        self.counts["answered-from-store"] += answered > self._answered.get(broker.number, 0)
        self._answered[broker.number] = answered


def _find_marks(broker: BrokerView, event: Event, effects: Sequence[Effect]) -> Iterator[str]:
    message = event.message if isinstance(event, MessageReceived) else None
    messages = [effect.message for effect in effects if type(effect) is Send]
    answers = sum([type(each) is ConsumedCommitted for each in messages])
    if answers:
        yield "token-kept"
        if message is not None:
            yield "token-asked-again"
        elif answers > 1:
            yield "tokens-kept-together"
    for effect in effects:
        match effect:
            case Send(message=Fetch()):
                yield "fetched" if type(message) is not Fetch else "fetched-for-another"
            case Send(message=Fetched()):
                if type(message) is Fetch and message.stream.broker != broker.number:
                    yield "fetched-on-the-way"
            case Send(message=Deferred()):
                yield "deferred"
            case Chop(log=log):
                yield "released" if log == LOG else "matches-chopped"
            case Shutdown():
                yield "refused"
            case Truncate():
                yield "matches-truncated"
            case Deliver(item=Silence()):
                yield "silence-said"
            case Deliver(item=Gap()):
                yield "gap-told"
            case Deliver(item=Deliveries()):
                if type(message) is Fetched:
                    yield "caught-up"
            case Commit(changes=changes):
                if type(event) is Persisted and any(row.table == DELIVERED for row in changes):
                    yield "matches-committed"
                if type(event) is DeadlineReached and any(row.table == RELEASED for row in changes):
                    yield "released-early"
                is_token = any(
                    row.table == SUBSCRIPTIONS and len(row.value or ()) > 4 for row in changes
                )
                for row in changes:
                    if row.table == ARRIVING and row.value is not None:
                        yield "token-kept-elsewhere" if is_token else "subscription-came"
                    elif row.table == DECOMMISSIONED:
                        yield "given-up"
                    elif row.table == HOLDS:
                        yield "hold-over" if row.value is None else "held"
            case Send(message=Consuming(delivered=given)) if given:
                yield "may-have-had"
            case Send(message=LetGo(at=broker.number)):
                if type(event) is Persisted:
                    yield "let-go"
