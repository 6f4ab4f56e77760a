"""The marks of durable, found in the events and effects of a core.

`PROTOCOL.md` names every mark at its rule. A new mark is a row of the table.
"""

from collections.abc import Sequence

from brokerd.model.client_messages import ConsumedCommitted, Consuming, Deliveries, Gap, Silence
from brokerd.overlay.graph import OverlayGraph
from brokerd.protocols.durable.core import Durable
from brokerd.protocols.durable.messages import Deferred, Fetch, Fetched, LetGo
from brokerd.protocols.durable.state import ARRIVING, DELIVERED, HOLDS, RETENTION
from brokerd.protocols.gryphon import LOG
from brokerd.protocols.gryphon.state import RELEASED
from brokerd.protocols.interface import (
    Chop,
    Commit,
    DeadlineReached,
    Deliver,
    Effect,
    Event,
    Persisted,
    RetentionChanged,
    Shutdown,
    Truncate,
)
from brokerd.protocols.parts.clients.own_subscriptions import SUBSCRIPTIONS
from brokerd.protocols.parts.decommissioning import DECOMMISSIONED
from brokerd.simulator.checks.marks import Mark, MarkStep, MarkTable, RisingNumbers
from brokerd.simulator.world.views import BrokerView


def _arrivals(step: MarkStep, *, is_token: bool) -> int:
    """Return the number of subscriptions, or of those with tokens, that arrived from brokers."""
    found = 0
    for commit in step.acts[Commit]:
        has_token = any(
            row.table == SUBSCRIPTIONS and len(row.value or ()) > 4 for row in commit.changes
        )
        if has_token == is_token:
            found += sum(row.table == ARRIVING and row.value is not None for row in commit.changes)
    return found


MARKS = (
    Mark(
        "fetch-sent",
        "a subscriber's broker requested missed publications",
        seeds=6,
        by=(Fetch,),
        when=lambda step: 0 if type(step.message) is Fetch else len(step.sent[Fetch]),
    ),
    Mark(
        "fetch-forwarded",
        "a broker forwarded such a request",
        seeds=10,
        on=(Fetch,),
        when=lambda step: len(step.sent.get(Fetch, ())),
    ),
    Mark(
        "fetch-answered-by-intermediate",
        "an intermediate broker answered a request",
        seeds=15,
        on=(Fetch,),
        when=lambda step: (
            0 if step.is_own(step.message.stream.broker) else len(step.sent.get(Fetched, ()))
        ),
    ),
    Mark("answered-from-cache", "a broker answered with events that had passed", seeds=10),
    Mark(
        "fetch-deferred",
        "a request was answered in part, and repeated",
        seeds=500,
        by=(Deferred,),
        when=lambda step: len(step.sent[Deferred]),
    ),
    Mark(
        "events-released",
        "a pubend released events that all had acknowledged",
        seeds=2,
        by=(Chop,),
        when=lambda step: sum(each.log == LOG for each in step.acts[Chop]),
    ),
    Mark(
        "matches-committed",
        "the delivered tick of a stream was written to disk",
        seeds=2,
        on=(Persisted,),
        when=lambda step: step.count_commits(DELIVERED),
    ),
    Mark(
        "match-log-truncated",
        "match records were truncated",
        seeds=2,
        by=(Chop,),
        when=lambda step: sum(each.log != LOG for each in step.acts[Chop]),
    ),
    Mark(
        "matches-rolled-back",
        "a restart dropped matches behind the last commit",
        seeds=10,
        by=(Truncate,),
        when=lambda step: len(step.acts[Truncate]),
    ),
    Mark(
        "position-announced",
        "a client received the position of a stream",
        seeds=2,
        by=(Deliver,),
        when=lambda step: step.count_delivered(Silence),
    ),
    Mark(
        "released-early",
        "a pubend released old events before all had acknowledged",
        seeds=10,
        on=(DeadlineReached,),
        when=lambda step: step.count_commits(RELEASED),
    ),
    Mark(
        "policy-changed",
        "a pubend changed its policy of early release",
        seeds=500,
        on=(RetentionChanged,),
        when=lambda step: step.count_commits(RETENTION),
    ),
    Mark(
        "gap-announced",
        "a client received a gap",
        seeds=40,
        by=(Deliver,),
        when=lambda step: step.count_delivered(Gap),
    ),
    Mark(
        "caught-up",
        "a client received missed publications from a remote pubend",
        seeds=10,
        on=(Fetched,),
        when=lambda step: step.count_delivered(Deliveries),
    ),
    Mark(
        "token-stored",
        "a broker stored the token of a client",
        seeds=6,
        by=(ConsumedCommitted,),
    ),
    Mark(
        "tokens-committed-together",
        "two clients' tokens shared a transaction",
        seeds=60,
        by=(ConsumedCommitted,),
        when=lambda step: step.message is None and len(step.sent[ConsumedCommitted]) > 1,
    ),
    Mark(
        "token-requested-again",
        "a client repeated the request for a committed token",
        seeds=12,
        by=(ConsumedCommitted,),
        when=lambda step: step.message is not None,
    ),
    Mark(
        "token-of-another-broker",
        "a broker resumed from a token of another broker",
        seeds=20,
        by=(Commit,),
        when=lambda step: _arrivals(step, is_token=True),
    ),
    Mark(
        "possible-deliveries-received",
        "a client received the possible deliveries of an earlier process",
        seeds=10,
        by=(Consuming,),
        when=lambda step: step.count_sent(Consuming, lambda each: bool(each.delivered)),
    ),
    Mark(
        "subscription-migrated",
        "a subscription arrived from another broker",
        seeds=8,
        by=(Commit,),
        when=lambda step: _arrivals(step, is_token=False),
    ),
    Mark(
        "hold-placed",
        "a pubend kept a hold for a migrating subscription",
        seeds=8,
        by=(Commit,),
        when=lambda step: sum(row.value is not None for row in step.rows(HOLDS)),
    ),
    Mark(
        "migrated-subscription-released",
        "a broker released a subscription that had migrated",
        seeds=8,
        on=(Persisted,),
        when=lambda step: step.count_sent(LetGo, lambda each: step.is_own(each.at)),
    ),
    Mark(
        "hold-ended",
        "the hold of a subscription ended",
        seeds=8,
        by=(Commit,),
        when=lambda step: sum(row.value is None for row in step.rows(HOLDS)),
    ),
    Mark(
        "decommissioned-broker-released",
        "a broker continued without a decommissioned one",
        seeds=40,
        by=(Commit,),
        when=lambda step: sum(1 for _ in step.rows(DECOMMISSIONED)),
    ),
    Mark(
        "decommissioned-broker-refused",
        "a decommissioned broker returned, and ended",
        seeds=40,
        by=(Shutdown,),
        when=lambda step: len(step.acts[Shutdown]),
    ),
)


class DurableMarks:
    """See MarkObserver: the marks of the table, and that of a counter."""

    def __init__(self, graph: OverlayGraph) -> None:
        self._table = MarkTable(MARKS)
        self._answered = RisingNumbers()

    @property
    def counts(self) -> dict[str, int]:
        return self._table.counts

    def step(self, broker: BrokerView, event: Event, effects: Sequence[Effect]) -> None:
        if effects:
            self._table.step(MarkStep(broker, event, effects))
        assert isinstance(broker.protocol, Durable), f"{broker.protocol} is no core of durable"
        answered = broker.protocol.gryphon.counters["fetched_from_store"]
        if self._answered.has_risen(broker.number, answered):
            self._table.count(("answered-from-cache",))
