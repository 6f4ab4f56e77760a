"""What simulations know of gryphon."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.topology import SCHEMA, Topology
from brokerd.protocols.gryphon.checks.ghosts import GhostChecks
from brokerd.protocols.gryphon.checks.marks import MARKS, GryphonMarks
from brokerd.protocols.gryphon.checks.words import GryphonWording
from brokerd.protocols.gryphon.mutants import MUTANTS
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.simulator.checks.growth import Kept
from brokerd.simulator.checks.planning import ProtocolPlanning
from brokerd.simulator.checks.protocol_checks import SimulatedProtocol
from brokerd.simulator.checks.reach import Reach
from brokerd.simulator.world.clock import MILLISECOND_NS


def tree_of_cells(names: Sequence[str], bundles: Sequence[tuple[str, str]]) -> Topology:
    """Brokers that are a cell each."""
    return Topology.from_mapping(
        {
            "schema": SCHEMA,
            "name": "cells",
            "kind": "cells",
            "cells": {"bundles": [list(bundle) for bundle in bundles]},
            "brokers": list(names),
        },
        "cells",
    )


class GryphonPlanning(ProtocolPlanning):
    """See ProtocolPlanning."""

    def topology(self, random: Random) -> Topology:
        """See ProtocolPlanning: a tree, paths more often than others."""
        names = [f"b{number}" for number in range(1, random.randrange(4, 8))]
        random.shuffle(names)
        is_path = random.random() < 0.4
        bundles = [
            (names[place - 1 if is_path else random.randrange(place)], name)
            for place, name in enumerate(names)
            if place
        ]
        return tree_of_cells(sorted(names), bundles)

    def options(self, seed: int, parameters: Any, *, long: bool, simple: bool) -> Any:
        """See ProtocolPlanning: liveness within a second, but where a seed lasts for minutes."""
        random = Random(f"gryphon {seed}")
        chosen: GryphonParameters = replace(parameters, pubends=random.choice((1, 2, 4)))
        if long:
            return chosen
        repetition_ns = random.choice((30, 80, 200)) * MILLISECOND_NS
        expected_ns = random.choice((100, 400)) * MILLISECOND_NS
        return replace(
            chosen,
            gap_curiosity_ns=random.choice((5, 20, 60)) * MILLISECOND_NS,
            nack_repetition_ns=repetition_ns,
            nack_repetition_limit_ns=4 * repetition_ns,
            nack_chunk_ns=random.choice((100, 500)) * MILLISECOND_NS,
            nack_window=random.choice((8, 64)),
            ack_expected_ns=expected_ns,
            ack_expected_check_ns=expected_ns // 4,
            ack_interval_ns=random.choice((1, 10, 50)) * MILLISECOND_NS,
        )

    def discovery_ns(self, parameters: Any) -> int:
        """See ProtocolPlanning: an event that nobody has asked for is missed by its pubend."""
        chosen: GryphonParameters = parameters
        return (
            chosen.ack_expected_ns
            + chosen.ack_expected_check_ns
            + 2 * chosen.nack_repetition_limit_ns
            + 8 * chosen.ack_interval_ns
        )


class GryphonReach(Reach):
    """See Reach: what is on the disk of its own broker is done, whoever is reached."""

    def acknowledges(self, source: BrokerNumber, homes: Sequence[BrokerNumber]) -> bool:
        """See Reach."""
        return True


SIMULATED = SimulatedProtocol(
    bugs=MUTANTS,
    canaries=("M01-horizon-ignored",),
    marks=MARKS,
    make_observer=GryphonMarks,
    make_reach=GryphonReach,
    make_wording=GryphonWording,
    kept=Kept(
        empty=(
            "Gryphon._early",
            "Pubends._logged",
            "RetainedEvents._runs",
            "RetainedEvents._firsts",
            "GapTable._pieces",
            "Subend._open",
            "Durability._when_durable",
            "Outlet.sent",
            "Outlet.parked",
        ),
        paired=("Subscription.begins_after", "Relay._streams", "published", "released"),
    ),
    make_checks=GhostChecks,
    make_planning=GryphonPlanning,
)
