"""The parts of durable that simulations use."""

from brokerd.protocols.durable.checks.disks import DurableChecks
from brokerd.protocols.durable.checks.marks import MARKS, DurableMarks
from brokerd.protocols.durable.checks.planning import DurablePlanning
from brokerd.protocols.durable.checks.steps import RECOUNTS
from brokerd.protocols.durable.checks.words import DurableWording
from brokerd.protocols.durable.state import ACKNOWLEDGED, ARRIVING, DELIVERED, HOLDS, WRITTEN
from brokerd.protocols.gryphon.checks import SIMULATED as CORE
from brokerd.protocols.gryphon.checks import GryphonReach
from brokerd.protocols.parts.clients.own_subscriptions import SUBSCRIPTIONS
from brokerd.simulator.checks.growth import ContainerLimits, Limit
from brokerd.simulator.checks.protocol_checks import SimulatedProtocol
from brokerd.simulator.checks.recounts import Position

SIMULATED = SimulatedProtocol(
    canaries=("restart-forgets-where-streams-are",),
    marks=MARKS,
    make_observer=DurableMarks,
    make_reach=GryphonReach,
    make_wording=DurableWording,
    kept=ContainerLimits(
        streams=CORE.kept.streams,
        empty=(
            *CORE.kept.empty,
            "Lane.out",
            "HostedStream.reading",
            "FilterLog._requests",
            "Fetching._wanted",
            "Arrivals.pending",
            "Holds.named",
            "Subscriptions._coming",
            "arriving",
            "holds",
        ),
        positions=CORE.kept.positions,
        bounded=(*CORE.kept.bounded, "StoredEvents._runs", "StoredEvents._firsts"),
        paired=(
            *CORE.kept.paired,
            "DurableSubscription.lanes",
            "DurableSubscription.presented",
            "CommitCycle._changed",
            "Durable._hosted",
            "a row of subscriptions",
            "DurableClient.brought[]",
            "Release._below",
            "Release._through",
            "acknowledged",
            "delivered",
            "written",
        ),
    ),
    limits=(
        *CORE.limits,
        Limit("brokerd.protocols.durable.fetching", "RUNS", (1, 3)),
        Limit("brokerd.protocols.durable.fetching", "JOINED_BYTES", (1, 300)),
        Limit("brokerd.protocols.durable.fetching", "ANSWER_WINDOWS", (1,)),
        Limit("brokerd.protocols.durable.filtering_subsystem", "PAGE_RECORDS", (1, 2, 5)),
        Limit("brokerd.protocols.durable.filtering_subsystem", "CACHED_PAGES", (1, 3)),
        Limit("brokerd.protocols.durable.consolidated_stream", "MANY", (1, 2)),
    ),
    positions=(
        *CORE.positions,
        Position(ACKNOWLEDGED, ends=True),
        Position(DELIVERED),
        Position(WRITTEN),
        Position(SUBSCRIPTIONS, lambda row: row[2], ends=True),
        Position(ARRIVING, ends=True),
        Position(HOLDS, lambda row: row[0], ends=True),
    ),
    make_checks=DurableChecks,
    recounts=RECOUNTS,
    make_planning=DurablePlanning,
)
