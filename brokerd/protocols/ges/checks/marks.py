"""The marks of ges, found in the events and effects of a core.

`PROTOCOL.md` names every mark at its rule.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from brokerd.model.client_messages import Subscribed
from brokerd.overlay.graph import OverlayGraph
from brokerd.protocols.ges.messages import (
    GraphStated,
    ProfileChanged,
    ProfileStated,
    RoutedPublications,
)
from brokerd.protocols.ges.units import is_its_own
from brokerd.protocols.interface import (
    CloseSession,
    DeadlineReached,
    Effect,
    Event,
    MessageReceived,
    OpenSession,
    OverlayChanged,
    Send,
)
from brokerd.simulator.checks.mark_table import MarkTable
from brokerd.simulator.checks.marks import Mark
from brokerd.simulator.world.views import BrokerView

MARKS = (
    Mark("came-around", "a statement about a unit returned to the unit from outside", seeds=8),
    Mark("in-outline", "a profile was sent with a unit in place of its broker", seeds=4),
    Mark("profile-known", "a profile arrived over a second connection", seeds=4),
    Mark("waits-no-more", "a neighbour that was disconnected for long was not awaited", seeds=10),
    Mark("stated-anew", "a slow profile was sent again before it took effect", seeds=10),
    Mark("kept-out", "no broker beyond a gatekeeper matched a publication", seeds=4),
    Mark("inner-way", "a planned route crossed a unit on a route found there", seeds=20),
    Mark("way-gone", "a route was abandoned for another one", seeds=20),
    Mark(
        "no-way",
        "no route led to a matching broker",
        seeds=20,
        counter="publications_without_route",
    ),
    Mark(
        "came-twice",
        "a duplicate or overtaken publication arrived",
        seeds=16,
        counter="duplicates_received",
    ),
    Mark("spoken-for", "brokers announced that another one lost all connections", seeds=8),
    Mark("wants-nothing", "brokers announced an empty profile for another broker", seeds=8),
    Mark("refuted", "a live broker received a statement that others made in its place", seeds=20),
    Mark("newcomer-told", "a broker received the announcement of a new neighbour", seeds=8),
    Mark("leaver-told", "a broker received the announcement that a neighbour left", seeds=12),
    Mark(
        "dearer",
        "a broker raised the announced cost of a slow link",
        seeds=20,
        counter="costs_raised",
    ),
    Mark(
        "cheaper",
        "a broker lowered the announced cost of a link",
        seeds=20,
        counter="costs_lowered",
    ),
    Mark(
        "clients-counted",
        "brokers of a cluster announced their numbers of clients",
        seeds=8,
        counter="client_counts_told",
    ),
    Mark(
        "sent-elsewhere",
        "a broker redirected a client to another broker",
        seeds=16,
        counter="clients_redirected",
    ),
    Mark(
        "cut-off",
        "a part of a cluster without its lowest member took no clients",
        seeds=20,
        counter="came_apart",
    ),
    Mark(
        "member-failed",
        "a part accepted clients again, without its failed members",
        seeds=40,
        counter="members_failed",
    ),
    Mark(
        "readdressed",
        "a part of a cluster took addresses of a unit of its own",
        seeds=40,
        counter="readdressed",
    ),
    Mark(
        "duty-taken",
        "a broker took the duty to keep profiles of others",
        seeds=0,
        counter="duties_taken",
    ),
    Mark(
        "duty-ended",
        "a broker removed profiles that it need not keep any more",
        seeds=0,
        counter="duties_ended",
    ),
    Mark(
        "attested", "a neighbour attested all profiles of a unit", seeds=0, counter="units_attested"
    ),
    Mark(
        "flooded",
        "a publication was sent to a unit without all of its profiles",
        seeds=0,
        counter="publications_flooded",
    ),
    Mark(
        "crossed",
        "both ends of a link sent each other the same change",
        seeds=0,
        counter="changes_crossed",
    ),
    Mark(
        "dearer-again",
        "the cost of a link rose soon after it had fallen",
        seeds=0,
        counter="costs_raised_again",
    ),
)


class GesMarks:
    """See MarkObserver."""

    def __init__(self, graph: OverlayGraph) -> None:
        self._table = MarkTable(MARKS)
        self.counts = self._table.counts

    def step(self, broker: BrokerView, event: Event, effects: Sequence[Effect]) -> None:
        """See MarkObserver."""
        messages = [effect.message for effect in effects if type(effect) is Send]
        if type(event) is OverlayChanged:
            self._table.count(announced_members(broker, effects))
        self._table.count(_sent_marks(broker, event, messages))
        self._table.count(_received_marks(broker, event, messages))
        self._table.count_statistics(broker)


def announced_members(broker: BrokerView, effects: Sequence[Effect]) -> Iterator[str]:
    """Yield the marks of a broker's effects for neighbours that join or have left."""
    if any(type(effect) is OpenSession for effect in effects):
        yield "newcomer-told"
    closed = (effect.peer for effect in effects if type(effect) is CloseSession)
    if any(isinstance(peer, int) for peer in closed):
        yield "leaver-told"


def _sent_marks(broker: BrokerView, event: Event, messages: Sequence[Any]) -> Iterator[str]:
    core: Any = broker.core
    depth = len(core.units.place.address)
    came = getattr(event, "message", None)
    reroutes = (
        max((target.reroutes for target in came.targets), default=0)
        if type(came) is RoutedPublications
        else 0
    )
    if any(type(message) is ProfileChanged and _is_empty_profile(message) for message in messages):
        yield "stated-anew"
    for message in messages:
        if type(message) is RoutedPublications:
            if any(len(target.frames) > 1 for target in message.targets):
                yield "inner-way"
            if any(target.reroutes > reroutes for target in message.targets):
                yield "way-gone"
        elif type(message) in (ProfileStated, ProfileChanged) and len(message.place) < depth:
            yield "in-outline"
    if type(event) is not DeadlineReached:
        return
    for message in messages:
        is_started = type(message) is Subscribed and message.state == "started"
        if is_started or (type(message) is ProfileChanged and _is_empty_profile(message)):
            yield "waits-no-more"
        elif type(message) is GraphStated:
            if not all(is_its_own(each.version) for each in message.statements):
                yield "spoken-for"
        elif type(message) is ProfileStated and not is_its_own(message.version):
            yield "wants-nothing"


def _received_marks(broker: BrokerView, event: Event, messages: Sequence[Any]) -> Iterator[str]:
    if type(event) is not MessageReceived:
        return
    core: Any = broker.core
    message = event.message
    if type(message) is GraphStated:
        for each in message.statements:
            ends = [end for end in (each.low_end, each.high_end) if core.units.place.is_in(end)]
            if any(end != core.units.place.address for end in ends):
                yield "came-around"
            if each.by == broker.number and not is_its_own(each.version) and messages:
                yield "refuted"
    elif type(message) is ProfileStated and message.origin == broker.number:
        if not is_its_own(message.version) and messages:
            yield "refuted"
    elif type(message) is ProfileChanged and not any(
        type(each) is type(message) for each in messages
    ):
        yield "profile-known"
    elif type(message) is RoutedPublications and not messages and _requests_answer(message):
        yield "kept-out"


def _is_empty_profile(message: ProfileChanged) -> bool:
    return not message.added and not message.removed


def _requests_answer(message: RoutedPublications) -> bool:
    """Return True if a gatekeeper is to decide on the publications."""
    return any(target.level for target in message.targets)
