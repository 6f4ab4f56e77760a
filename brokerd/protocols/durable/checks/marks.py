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
from brokerd.overlay.graph import OverlayGraph
from brokerd.protocols.durable.arrivals import ARRIVING
from brokerd.protocols.durable.holds import HOLDS
from brokerd.protocols.durable.hosted_streams import DELIVERED
from brokerd.protocols.durable.messages import Deferred, Fetch, Fetched, LetGo
from brokerd.protocols.gryphon.logs import LOG
from brokerd.protocols.gryphon.pubends import RELEASED
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
    Mark("fetched", "a subscriber's broker asked for what somebody had missed", seeds=6),
    Mark("fetched-for-another", "a broker passed on such a question", seeds=10),
    Mark("fetched-on-the-way", "a broker that is no pubend's answered one", seeds=15),
    Mark("deferred", "a question was answered in part, and asked again", seeds=500),
    Mark("released", "a pubend let go of what everybody had acknowledged", seeds=2),
    Mark("matches-committed", "it was written down how far a stream had come", seeds=2),
    Mark("matches-chopped", "what was for whom was not needed any more", seeds=2),
    Mark("matches-truncated", "a restart dropped matches behind the last commit", seeds=10),
    Mark("silence-said", "a client was told how far a stream had come", seeds=2),
    Mark("released-early", "a pubend let go of what was old, and somebody lacked", seeds=10),
    Mark("gap-told", "a client was told of what was lost", seeds=40),
    Mark("caught-up", "a client got what it had missed from afar", seeds=10),
    Mark("token-kept", "a broker wrote down what a client has consumed", seeds=6),
    Mark("tokens-kept-together", "two clients' tokens shared a transaction", seeds=40),
    Mark("token-asked-again", "a client asked for what was committed already", seeds=12),
    Mark("token-kept-elsewhere", "a broker went on with a token of another one", seeds=20),
    Mark("may-have-had", "a client was told what an earlier process may have had", seeds=10),
    Mark("subscription-came", "a subscription came from another broker", seeds=8),
    Mark("held", "a pubend kept by name what a subscription that moved lacked", seeds=8),
    Mark("let-go", "a broker let go of a subscription that is elsewhere", seeds=8),
    Mark("hold-over", "nothing needed to be held for a subscription any more", seeds=8),
    Mark("given-up", "a broker went on without another one for good", seeds=40),
    Mark("refused", "a broker that was given up came back, and ended", seeds=40),
)


class DurableMarks:
    """See MarkObserver."""

    def __init__(self, graph: OverlayGraph) -> None:
        self.counts = {mark.name: 0 for mark in MARKS}

    def step(self, broker: BrokerView, event: Event, effects: Sequence[Effect]) -> None:
        """See MarkObserver."""
        for name in _reached(broker, event, effects) if effects else ():
            self.counts[name] += 1


def _reached(broker: BrokerView, event: Event, effects: Sequence[Effect]) -> Iterator[str]:
    message = event.message if isinstance(event, MessageReceived) else None
    said = [effect.message for effect in effects if type(effect) is Send]
    answers = sum([type(each) is ConsumedCommitted for each in said])
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
            case Send(message=Consuming(given=given)) if given:
                yield "may-have-had"
            case Send(message=LetGo(at=broker.number)):
                if type(event) is Persisted:
                    yield "let-go"
