"""Invariants of gryphon that hold on every step.

The checks of each invariant of the protocol's design, by the names of the rules:

    I1   no event is silent    ghosts: silent event
    I2   events are themselves ghosts: other event
    I3   all ticks assigned    ghosts: unassigned tick
    I4   form of a stream      ghosts: tick order, tick reused; holdings: pubend with a gap
    I5   once and in order     oracle: `on_delivered` (duplicate, order, gap), `judge_end`
    I6   done means all        ghosts: final early
    I7   done only grows       traffic: acknowledged ahead, acknowledgement decreased
    I8   log keeps the rest    holdings: chopped early
    I9   curious of unknown    ghosts: curiosity; holdings: still curious
    I10  consolidation         traffic: requested twice, requested without need,
                               unrequested answers
    I11  routes                traffic: route back
    I12  on disk before said   ghosts: acknowledged early, other event; joins: joined early
    I13  ranges are canonical  ghosts: ranges
    I14  in the end            oracle: `judge_end`; plan_run: `_list_rest` (gaps, retained events)
    I15  total order           oracle: total order; joins: start unannounced, start early
    I17  filters are known     here: filter known
    I16  bounded memory        holdings: retained, unsettled; growth: `check_growth`;
                               traffic: window

`tests/protocols/gryphon/test_checks.py` has a mistake for each of these rules.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from brokerd.model.identity import BrokerNumber, SourceId
from brokerd.model.predicate import EVERYTHING
from brokerd.protocols.gryphon.checks.ghost_joins import JoinChecks
from brokerd.protocols.gryphon.checks.ghosts import GhostChecks
from brokerd.protocols.gryphon.checks.holdings import HoldingChecks
from brokerd.protocols.gryphon.checks.stream_states import StreamStates, gryphon_of
from brokerd.protocols.gryphon.checks.traffic import TrafficChecks
from brokerd.protocols.gryphon.core import Gryphon
from brokerd.protocols.gryphon.filter_routes import MOST_OWED
from brokerd.protocols.gryphon.filter_table import FilterTable
from brokerd.protocols.gryphon.flow_control import FlowControl
from brokerd.protocols.gryphon.knowledge import RetainedEvents
from brokerd.protocols.gryphon.messages import FilterChange
from brokerd.protocols.gryphon.own_filter import OwnFilter
from brokerd.protocols.gryphon.pubend import Pubends
from brokerd.protocols.gryphon.stream import InFlightEvents
from brokerd.protocols.interface import Effect, Event
from brokerd.protocols.parts.clients.own_subscriptions import SUBSCRIPTIONS, OwnSubscription
from brokerd.simulator.checks.linger import LingerChecker
from brokerd.simulator.checks.losses import Stretch
from brokerd.simulator.checks.protocol_checks import CheckedWorld, ProtocolChecks
from brokerd.simulator.checks.recounts import Recount, nonzero
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.views import BrokerView


class GryphonChecks(ProtocolChecks):
    """See ProtocolChecks: the checks of all modules.

    Attributes:
        ghosts: the disks of all pubends.
        lingering: the subscriptions that brokers end for their clients' absence.
    """

    def __init__(self, world: CheckedWorld) -> None:
        super().__init__(world)
        self.ghosts = GhostChecks(world)
        self._holdings = HoldingChecks(world)
        others = [each(world) for each in (JoinChecks, TrafficChecks)]
        self._each: list[ProtocolChecks] = [self.ghosts, *others, self._holdings]
        self._states = StreamStates()
        self._steps: dict[BrokerNumber, int] = {}
        self._examined: dict[BrokerNumber, tuple[int, int, int]] = {}
        self.lingering = LingerChecker(
            world.schedule, world.oracle, world.parameters.client_linger_ns, SUBSCRIPTIONS
        )

    def step(
        self, broker: BrokerView, event: Event, effects: list[Effect]
    ) -> Sequence[tuple[str, int]]:
        self._steps[broker.number] = self._steps.get(broker.number, 0) + 1
        for checks in self._each:
            checks.step(broker, event, effects)
        return self.lingering.step(broker, event, effects)

    def is_undecided(self, broker: BrokerView, local: OwnSubscription) -> bool:
        """Return True if a client has not requested a subscription, and may have no memory."""
        return self.lingering.is_undecided(broker, local.client, claimed=local.claimed)

    def is_in_gap(
        self, gap: Stretch, source: SourceId, sequence: int, *, is_lost_there: bool
    ) -> bool:
        return self.ghosts.is_in_gap(gap, source, sequence, is_lost_there=is_lost_there)

    def restored(self, broker: BrokerView) -> int:
        """See ProtocolChecks: subscriptions of an older copy before their clients connect.

        A client that has moved returns to its new broker only.
        """
        core: Any = broker.protocol
        oracle = self.world.oracle
        if not oracle.losses.is_lossy(broker.number):
            return 0
        return sum(
            (name, number) not in oracle.register.subscriptions and not client.connected
            for name, client in core._clients.table.clients.items()
            for number in client.subscriptions
        )

    def look_into(self, broker: BrokerView, brokers: Sequence[BrokerView]) -> None:
        """See ProtocolChecks; a state is examined once, until a step or a change of disks."""
        self.ghosts.note_acknowledgements()
        state = self._steps.get(broker.number, 0), *self.ghosts.changes
        if self._examined.get(broker.number) != state:
            self.examine(broker, brokers)
            self._examined[broker.number] = state

    def examine(self, broker: BrokerView, brokers: Sequence[BrokerView]) -> None:
        """Check all streams of a broker whose state has changed since the last check."""
        core = gryphon_of(broker.protocol)
        ghosts, take = self.ghosts, self._states.take
        for stream in core.streams:
            if take(broker.number, stream, ghosts.facts_of(stream.identity)):
                ghosts.check_stream(broker, stream)
                self._holdings.check_stream(broker, core, stream)

    def check_settled(self, brokers: Sequence[BrokerView]) -> None:
        """See ProtocolChecks: all brokers have the filter of each live broker, or are owed it."""
        cores = {each.number: gryphon_of(each.protocol) for each in brokers if each.alive}
        owed = [*_owed_changes(cores)]
        awaited = {(peer, origin): None for (_, peer, origin), _ in owed}
        for (number, peer, origin), changes in owed:
            if len(changes) >= MOST_OWED:
                subject = (
                    f"{brokers[number].name} owes {len(changes)} changes of {origin} to {peer}"
                )
                raise InvariantViolated("growth", subject)
        for number, core in cores.items():
            for host, known in core.filters._filters.items() if core.filters.is_on else ():
                own = cores[host].filters._filters[host] if host in cores else known
                is_same = (known.version, known.predicates) == (own.version, own.predicates)
                if not is_same and (number, host) not in awaited:
                    subject = f"{brokers[number].name} has {known} of {brokers[host].name}"
                    raise InvariantViolated("filter known", f"{subject}, which has {own}"[:500])


def _owed_changes(
    cores: Mapping[BrokerNumber, Gryphon],
) -> Iterator[tuple[tuple[BrokerNumber, BrokerNumber, BrokerNumber], list[FilterChange]]]:
    """Yield owed changes by broker, neighbour and broker of the filter."""
    for number, core in cores.items():
        for peer, origins in core.filter_exchange.change_routes.owed.items():
            for origin, changes in origins.items():
                yield (number, peer, origin), changes


RETAINED = (
    Recount(
        RetainedEvents,
        "events",
        lambda kept: kept.events,
        lambda kept, _: sum(map(len, kept._runs)),
    ),
    Recount(
        RetainedEvents,
        "payload_bytes",
        lambda kept: kept.payload_bytes,
        lambda kept, _: sum(run.payload_bytes() for run in kept._runs),
    ),
    Recount(
        RetainedEvents,
        "firsts",
        lambda kept: kept._firsts,
        lambda kept, _: [run.first for run in kept._runs],
    ),
    Recount(
        RetainedEvents,
        "dense",
        lambda kept: kept._dense <= len(kept._runs),
        lambda kept, _: True,
    ),
)

RECOUNTS = (
    *RETAINED,
    Recount(
        FilterTable,
        "everything",
        lambda table: {host: each.everything for host, each in table._filters.items()},
        lambda table, _: {
            host: sum(wanted == EVERYTHING for wanted in (each.predicates or {}).values())
            for host, each in table._filters.items()
        },
    ),
    Recount(
        OwnFilter,
        "subscriptions",
        lambda own: {wanted: each.subscriptions for wanted, each in own._wanted.items()},
        lambda own, _: dict(Counter(local.predicate for local in own._added)),
    ),
    Recount(Pubends, "logging_bytes", lambda pubends: pubends._logging_bytes, lambda *_: 0),
    Recount(
        Pubends,
        "pending",
        lambda pubends: [*map(len, pubends._pending)],
        lambda pubends, _: [0] * len(pubends._pending),
    ),
    Recount(
        FlowControl,
        "full",
        lambda flow: [*flow.full],
        lambda flow, _: [key for key in flow.full if flow._windows[key].room_bytes <= 0],
    ),
    Recount(
        FlowControl,
        "stalled",
        lambda flow: [key for key, window in flow._windows.items() if window.is_stalled],
        lambda flow, _: [
            key
            for key, window in flow._windows.items()
            if window.is_stalled and window.room_bytes <= 0
        ],
    ),
    Recount(FlowControl, "owed", lambda flow: nonzero(flow._owed), lambda *_: {}),
    Recount(
        InFlightEvents,
        "open",
        lambda entry: entry.open,
        lambda entry, holdings: holdings.parcels_of(entry),
    ),
)
