"""The topologies and parameters that simulated seeds draw for gryphon."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, ClassVar, Final

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.routes import Link
from brokerd.overlay.topology import SCHEMA, Topology
from brokerd.protocols.definition import Order
from brokerd.protocols.gryphon.definition import COPIES
from brokerd.protocols.gryphon.parameters import GryphonParameters, most_disks
from brokerd.protocols.gryphon.replication import (
    COPIES_LINEAGE,
    REPLICATION,
    majority_of,
    replay,
    replicas_of,
)
from brokerd.protocols.gryphon.routes import cells_of
from brokerd.simulator.checks.planning import CLIENT_LIMITS, DiskHolder, ProtocolPlanning
from brokerd.units import MILLISECOND_NS

TOTAL = 0.3
"""Share of the seeds with total order."""

FILTERS = 0.85
"""Share of the seeds with filters between brokers."""

REPLICATED: Final = 0.3
"""Share of the later seeds with replicas."""

BEFORE_REPLICAS: Final = 200
"""The last seed whose history is older than replicas."""

SUBENDS_ONLY: Final = 0.5
"""Share of the seeds with doubts of subends in which pubends request no acks."""


def tree_of_cells(
    names: Sequence[str],
    bundles: Sequence[tuple[str, str]],
    members: Mapping[str, Sequence[str]] | None = None,
    links: Sequence[tuple[str, str]] = (),
) -> Topology:
    """Return a topology with one broker per cell, except for the cells in `members`.

    Args:
        links: of the bundles; empty: all possible links.
    """
    section: dict[str, Any] = {"bundles": [list(bundle) for bundle in bundles]}
    if members:
        section["members"] = {cell: list(row) for cell, row in members.items()}
    if links:
        section["links"] = [list(link) for link in links]
    return Topology.from_mapping(
        {"schema": SCHEMA, "name": "cells", "kind": "cells", "cells": section, "brokers": [*names]},
        "cells",
    )


def draw_tree(random: Random) -> tuple[list[str], list[tuple[str, str]]]:
    """Return cells and bundles between them; a path more often than another tree."""
    cells = [f"b{number}" for number in range(1, random.randrange(4, 8))]
    random.shuffle(cells)
    is_path = random.random() < 0.4
    bundles = [
        (cells[place - 1 if is_path else random.randrange(place)], cell)
        for place, cell in enumerate(cells)
        if place
    ]
    return cells, bundles


def draw_cells(random: Random) -> Topology:
    """Return a tree of cells, in most cases with several brokers in inner cells."""
    cells, bundles = draw_tree(random)
    inner = [cell for cell in cells if sum(cell in bundle for bundle in bundles) > 1]
    wide = inner if random.random() < 0.7 else []
    members = {
        f"cell-{cell}": [cell, *(f"{cell}-{n}" for n in range(2, random.choice((2, 3, 3, 4))))]
        for cell in sorted(wide)
        if random.random() < 0.7
    }
    members = {cell: row for cell, row in members.items() if len(row) > 1}
    called = {row[0]: cell for cell, row in members.items()}
    between = [(called.get(a, a), called.get(b, b)) for a, b in bundles]
    links = _draw_links(random, between, members) if random.random() < 0.4 else []
    names = sorted({*cells, *(name for row in members.values() for name in row)})
    return tree_of_cells(names, between, members, links)


def _draw_links(
    random: Random, bundles: Sequence[tuple[str, str]], members: Mapping[str, Sequence[str]]
) -> list[tuple[str, str]]:
    """Return some of the possible links, at least one of each bundle."""
    found = []
    for a, b in bundles:
        every = [(x, y) for x in members.get(a, [a]) for y in members.get(b, [b])]
        found += random.sample(every, random.randrange(1, len(every) + 1))
    return found


class GryphonPlanning(ProtocolPlanning):
    """See ProtocolPlanning."""

    draws_restored: ClassVar[bool] = True
    rare: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **CLIENT_LIMITS,
        "pubends": (16,),
        "events_per_message": (1, 1, 3),
        "silence_limit_ns": (MILLISECOND_NS, 5 * MILLISECOND_NS),
    }

    def topology(self, random: Random) -> Topology:
        return draw_cells(random)

    def options(self, seed: int, parameters: Any, *, long: bool, simple: bool) -> Any:
        """See ProtocolPlanning: liveness within a second, except for seeds of several minutes."""
        random = Random(f"gryphon {seed}")
        pubends = random.choice((1, 2, 4))
        ordering = Random(f"order of gryphon {seed}")
        order = Order.TOTAL if ordering.random() < TOTAL else Order.PUBLISHER
        filters = Random(f"filters of gryphon {seed}").random() < FILTERS
        windows = Random(f"windows of gryphon {seed}")
        delays = Random(f"delays of gryphon {seed}")
        chosen: GryphonParameters = replace(
            parameters,
            pubends=pubends,
            order=order.value,
            filters=filters,
        )
        if long:
            return chosen
        repetition_ns = random.choice((30, 80, 200)) * MILLISECOND_NS
        expected_ns = random.choice((100, 400)) * MILLISECOND_NS
        delay_ns = delays.choice((0, 0, 0, 100, 300)) * MILLISECOND_NS
        if delay_ns and delays.random() < SUBENDS_ONLY:
            expected_ns = 0
        check_ns = expected_ns // 4 or 100 * MILLISECOND_NS
        return replace(
            chosen,
            delay_curiosity_ns=delay_ns,
            gap_curiosity_ns=random.choice((5, 20, 60)) * MILLISECOND_NS,
            nack_repetition_ns=repetition_ns,
            nack_repetition_limit_ns=4 * repetition_ns,
            nack_chunk_ns=random.choice((100, 500)) * MILLISECOND_NS,
            nack_window=random.choice((8, 64)),
            ack_expected_ns=expected_ns,
            ack_expected_check_ns=check_ns,
            ack_interval_ns=random.choice((1, 10, 50)) * MILLISECOND_NS,
            doubt_curiosity_ns=ordering.choice((0, 5, 20)) * MILLISECOND_NS,
            silence_percent=ordering.choice((0, 50, 90)) if chosen.is_total else 0,
            send_window_bytes=windows.choice((200, 1_500, chosen.send_window_bytes)),
            answer_window_bytes=windows.choice((4_000, 12_000, chosen.answer_window_bytes)),
            send_stall_ns=windows.choice((50, 200)) * MILLISECOND_NS,
        )

    def topology_options(self, seed: int, parameters: Any, topology: Topology) -> Any:
        """See ProtocolPlanning: later seeds have replicas, as many as all brokers can."""
        random = Random(f"replicas {seed}")
        if seed <= BEFORE_REPLICAS or random.random() >= REPLICATED:
            return parameters
        return replace(parameters, replicas=random.randint(2, most_disks(topology)[0]))

    def can_restore(
        self,
        topology: Topology,
        parameters: Any,
        broker: BrokerNumber,
        brokers: Sequence[DiskHolder],
    ) -> bool:
        return can_restore(topology, parameters, broker, brokers)

    def discovery_ns(self, parameters: Any) -> int:
        """See ProtocolPlanning: a pubend detects the loss of an event that no broker has requested.

        A joining pubend repeats its requests.
        """
        chosen: GryphonParameters = parameters
        join_ns = 2 * chosen.retry_limit_ns if chosen.is_total else 0
        # In a window of a few events, held publications take a round trip per window, and so do
        # repeated requests.
        held_ns = 60_000 * MILLISECOND_NS if chosen.send_window_bytes < 10_000 else 0
        answered_ns = 20_000 * MILLISECOND_NS if chosen.answer_window_bytes < 10_000 else 0
        return (
            join_ns
            + held_ns
            + answered_ns
            + 2 * chosen.ack_expected_ns
            + chosen.ack_expected_check_ns
            + 2 * chosen.nack_repetition_limit_ns
            + 8 * chosen.ack_interval_ns
            + 2 * chosen.send_stall_ns
            + chosen.doubt_curiosity_ns
            + 4 * chosen.delay_curiosity_ns
        )


def count_reached(
    topology: Topology,
    parameters: Any,
    broker: BrokerNumber,
    broken: Collection[Link],
    removed: Collection[BrokerNumber],
) -> int:
    """Return the number of replicas that a broker reaches."""
    near = cells_of(topology).surroundings(broker)
    return sum(
        each not in removed and (min(broker, each), max(broker, each)) not in broken
        for each in replicas_of(broker, near, parameters.replicas)
    )


def copies_needed(parameters: Any) -> int:
    """Return the number of copies that have every durable write of a broker among them."""
    found: int = parameters.replicas - majority_of(parameters.replicas) + 1
    return found


def can_restore(
    topology: Topology, parameters: Any, broker: BrokerNumber, brokers: Sequence[DiskHolder]
) -> bool:
    """Return True if the disks of enough replicas have a whole copy of a broker's state."""
    near = cells_of(topology).surroundings(broker)
    replicas = [brokers[each] for each in replicas_of(broker, near, parameters.replicas)]
    whole = [each for each in replicas if _has_copy(each, broker)]
    return len(whole) >= copies_needed(parameters)


def _has_copy(replica: DiskHolder, owner: BrokerNumber) -> bool:
    lineage = replica.rows_of(REPLICATION).get(COPIES_LINEAGE, 0)
    if lineage != replica.lineage:
        return False
    first, records = replica.records_of(COPIES)
    return owner in replay(enumerate(records, first))
