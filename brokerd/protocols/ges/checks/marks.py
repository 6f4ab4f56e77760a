"""The marks of ges, found in the events and effects of a core.

`PROTOCOL.md` names every mark at its rule. A new mark is a row of the table.
"""

from collections.abc import Sequence

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
    OpenSession,
    OverlayChanged,
)
from brokerd.simulator.checks.marks import Mark, MarkStep, MarkTable
from brokerd.simulator.world.views import BrokerView


def _returned(step: MarkStep) -> int:
    """Return the number of statements about a unit of this broker from outside."""
    place, found = step.core.units.place, 0
    for each in step.message.statements:
        ends = [end for end in (each.low_end, each.high_end) if place.is_in(end)]
        found += any(end != place.address for end in ends)
    return found


def _refuted(step: MarkStep) -> int:
    """Return the number of answered statements that others made in place of this broker."""
    if not step.sent:
        return 0
    if type(step.message) is ProfileStated:
        return step.is_own(step.message.origin) and not is_its_own(step.message.version)
    return sum(
        step.is_own(each.by) and not is_its_own(each.version) for each in step.message.statements
    )


def _outlined(step: MarkStep) -> int:
    """Return the number of sent profiles with a unit in place of its broker."""
    depth = len(step.core.units.place.address)
    kinds = (ProfileStated, ProfileChanged)
    return sum(step.count_sent(kind, lambda each: len(each.place) < depth) for kind in kinds)


def _unawaited(step: MarkStep) -> int:
    """Return the number of messages that a neighbour delayed until the deadline."""
    started = step.count_sent(Subscribed, lambda each: each.state == "started")
    return started + step.count_sent(ProfileChanged, _is_empty)


def _rerouted(step: MarkStep) -> int:
    """Return the number of sent publications with more abandoned routes than received ones."""
    message, before = step.message, 0
    if type(message) is RoutedPublications:
        before = max((target.reroutes for target in message.targets), default=0)
    return step.count_sent(
        RoutedPublications,
        lambda each: any(target.reroutes > before for target in each.targets),
    )


def _is_kept_out(step: MarkStep) -> bool:
    """Return True if a gatekeeper that decides on publications sends none."""
    return not step.sent and any(target.level for target in step.message.targets)


def _has_inner_frames(message: RoutedPublications) -> bool:
    return any(len(target.frames) > 1 for target in message.targets)


def _is_for_others(message: GraphStated) -> bool:
    return not all(is_its_own(each.version) for each in message.statements)


def _is_empty(message: ProfileChanged) -> bool:
    return not message.added and not message.removed


def _closes_neighbour(step: MarkStep) -> bool:
    return any(isinstance(each.peer, int) for each in step.acts.get(CloseSession, ()))


MEMBER_MARKS = (
    Mark(
        "neighbour-announced",
        "a broker received the announcement of a new neighbour",
        seeds=8,
        on=(OverlayChanged,),
        when=lambda step: OpenSession in step.acts,
    ),
    Mark(
        "departure-announced",
        "a broker received the announcement that a neighbour left",
        seeds=12,
        on=(OverlayChanged,),
        when=_closes_neighbour,
    ),
)
"""The marks of neighbours that join or leave, in all protocols with units."""

MARKS = (
    Mark(
        "statement-returned",
        "a statement about a unit returned to the unit from outside",
        seeds=8,
        on=(GraphStated,),
        when=_returned,
    ),
    Mark(
        "profile-in-outline",
        "a profile was sent with a unit in place of its broker",
        seeds=4,
        by=(ProfileStated, ProfileChanged),
        when=_outlined,
    ),
    Mark(
        "profile-received-twice",
        "a profile arrived over a second connection",
        seeds=4,
        on=(ProfileChanged,),
        when=lambda step: ProfileChanged not in step.sent,
    ),
    Mark(
        "neighbour-not-awaited",
        "a neighbour that was disconnected for long was not awaited",
        seeds=10,
        on=(DeadlineReached,),
        when=_unawaited,
    ),
    Mark(
        "profile-resent",
        "a slow profile was sent again before it took effect",
        seeds=10,
        by=(ProfileChanged,),
        when=lambda step: step.sends(ProfileChanged, _is_empty),
    ),
    Mark(
        "publication-filtered",
        "no broker beyond a gatekeeper matched a publication",
        seeds=4,
        on=(RoutedPublications,),
        when=_is_kept_out,
    ),
    Mark(
        "inner-route-taken",
        "a planned route crossed a unit on a route found there",
        seeds=20,
        by=(RoutedPublications,),
        when=lambda step: step.count_sent(RoutedPublications, _has_inner_frames),
    ),
    Mark(
        "route-abandoned",
        "a route was abandoned for another one",
        seeds=20,
        by=(RoutedPublications,),
        when=_rerouted,
    ),
    Mark(
        "route-missing",
        "no route led to a matching broker",
        seeds=20,
        counter="publications_without_route",
    ),
    Mark(
        "duplicate-received",
        "a duplicate or overtaken publication arrived",
        seeds=16,
        counter="duplicates_received",
    ),
    Mark(
        "isolated-broker-announced",
        "brokers announced that another one lost all connections",
        seeds=8,
        on=(DeadlineReached,),
        when=lambda step: step.count_sent(GraphStated, _is_for_others),
    ),
    Mark(
        "empty-profile-announced",
        "brokers announced an empty profile for another broker",
        seeds=8,
        on=(DeadlineReached,),
        when=lambda step: step.count_sent(ProfileStated, lambda each: not is_its_own(each.version)),
    ),
    Mark(
        "statement-refuted",
        "a live broker received a statement that others made in its place",
        seeds=20,
        on=(GraphStated, ProfileStated),
        when=_refuted,
    ),
    *MEMBER_MARKS,
    Mark(
        "cost-raised",
        "a broker raised the announced cost of a slow link",
        seeds=20,
        counter="costs_raised",
    ),
    Mark(
        "cost-lowered",
        "a broker lowered the announced cost of a link",
        seeds=20,
        counter="costs_lowered",
    ),
    Mark(
        "client-counts-announced",
        "brokers of a cluster announced their numbers of clients",
        seeds=8,
        counter="client_counts_told",
    ),
    Mark(
        "client-redirected",
        "a broker redirected a client to another broker",
        seeds=16,
        counter="clients_redirected",
    ),
    Mark(
        "cluster-part-closed",
        "a part of a cluster without its lowest member took no clients",
        seeds=20,
        counter="clusters_partitioned",
    ),
    Mark(
        "member-failed",
        "a part accepted clients again, without its failed members",
        seeds=40,
        counter="members_failed",
    ),
    Mark(
        "cluster-part-readdressed",
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
        "unit-attested",
        "a neighbour attested all profiles of a unit",
        seeds=0,
        counter="units_attested",
    ),
    Mark(
        "publication-flooded",
        "a publication was sent to a unit without all of its profiles",
        seeds=0,
        counter="publications_flooded",
    ),
    Mark(
        "changes-crossed",
        "both ends of a link sent each other the same change",
        seeds=0,
        counter="changes_crossed",
    ),
    Mark(
        "cost-raised-again",
        "the cost of a link rose soon after it had fallen",
        seeds=0,
        counter="costs_raised_again",
    ),
)


class GesMarks:
    """See MarkObserver: the marks of the table."""

    def __init__(self, graph: OverlayGraph) -> None:
        self._table = MarkTable(MARKS)

    @property
    def counts(self) -> dict[str, int]:
        return self._table.counts

    def step(self, broker: BrokerView, event: Event, effects: Sequence[Effect]) -> None:
        self._table.step(MarkStep(broker, event, effects))
        self._table.count_statistics(broker)
