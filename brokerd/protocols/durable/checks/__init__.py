"""What simulations know of durable."""

from brokerd.protocols.durable.checks.disks import DurableChecks
from brokerd.protocols.durable.checks.marks import MARKS, DurableMarks
from brokerd.protocols.durable.checks.planning import DurablePlanning
from brokerd.protocols.durable.checks.words import DurableWording
from brokerd.protocols.durable.mutants import MUTANTS
from brokerd.protocols.gryphon.checks import SIMULATED as CORE
from brokerd.protocols.gryphon.checks import GryphonReach
from brokerd.simulator.checks.growth import Kept
from brokerd.simulator.checks.limits import Limit
from brokerd.simulator.checks.protocol_checks import SimulatedProtocol

SIMULATED = SimulatedProtocol(
    bugs=MUTANTS,
    canaries=("restart-forgets-where-streams-are",),
    marks=MARKS,
    make_observer=DurableMarks,
    make_reach=GryphonReach,
    make_wording=DurableWording,
    kept=Kept(
        streams=CORE.kept.streams,
        empty=(
            *CORE.kept.empty,
            "Durable._early",
            "Lane.out",
            "HostedStream.reading",
            "FilterLog._asked",
            "Fetching._wanted",
            "Arrivals._arrivals",
            "Holds._holds",
            "MovingClients._coming",
            "arriving",
            "holds",
        ),
        paired=(
            *CORE.kept.paired,
            "DurableSubscription.lanes",
            "DurableSubscription.presented",
            "MovingClients._changed",
            "MovingClients._hosted",
            "a row of subscriptions",
            "MovingClient.brought[]",
            "Release._below",
            "Release._through",
            "acknowledged",
            "delivered",
            "written",
        ),
    ),
    limits=(
        *CORE.limits,
        Limit("brokerd.protocols.durable.fetched_events", "RUNS", (1, 3)),
        Limit("brokerd.protocols.durable.fetching", "JOINED_BYTES", (1, 300)),
        Limit("brokerd.protocols.durable.fetching", "ANSWER_WINDOWS", (1,)),
        Limit("brokerd.protocols.durable.filter_log", "PAGE_RECORDS", (1, 2, 5)),
        Limit("brokerd.protocols.durable.filter_log", "CACHED_PAGES", (1, 3)),
        Limit("brokerd.protocols.durable.handing", "MANY", (1, 2)),
    ),
    make_checks=DurableChecks,
    make_planning=DurablePlanning,
)
