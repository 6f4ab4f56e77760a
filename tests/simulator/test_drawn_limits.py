"""Tests of the limits in the code: seeds lower each of them, but for those with a reason."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from brokerd.protocols.registry import DEFINITIONS
from brokerd.simulator.checks.growth import LATE
from brokerd.simulator.checks.protocol_checks import limits_of
from brokerd.simulator.search.planning.draw import draw_plan
from brokerd.simulator.search.swarm import run_seed

PACKAGE: Final = Path(__file__).parents[2] / "brokerd"
FOLDERS: Final = ("protocols", "client", "storage", "matching")
PLANS: Final = 60

NUMBER: Final = "a number with a meaning, at which nothing changes"
MESSAGES: Final = "part of the wire format or of a format on disk"
TIMED: Final = "a patience in periods; shorter ones suspect brokers that are well"
REFUSED: Final = "a bound at which a peer or a user is refused; tests of hostile sessions reach it"
PARAMETER: Final = "the default of a parameter, which seeds draw"
FORGOTTEN: Final = "a bound of memory, behind which a promise is weaker or a lease ends a hold"
REAL: Final = "of real files and sockets; tests of the part reach it"

UNDRAWN: Final = {
    NUMBER: (
        "delta_tree.regions: LARGEST_BROKER NOBODY; delta_tree.messages: NOTIFIER; "
        "delta_tree.state: _RESTARTED; delta_tree.unsubscriptions: NEVER; durable.consumers: ANY; "
        "durable.filtering_subsystem: NO_RECORD; durable.parameters: _DAY_NS; "
        "ges.dissemination: UP; ges.messages: DOWN; ges.units: FIRST _STEP; "
        "ges_reliable.epochs: _ONE_BY_ONE; ges_reliable.subscriptions: _NONE; "
        "gryphon.filter_table: _EVERY_CELL; gryphon.knowledge: TICK_NS LAST_TICK TICK_LIMIT; "
        "gryphon.flow_control: EVENT_BYTES FIRST_LIMIT; gryphon.messages: EVERYWHERE; "
        "gryphon.replicated_core: _OWN_TOKENS; "
        "multi_proxy.topic_log: _CARRIED; multi_proxy.topics: NO_TOPIC; "
        "interface: FIRST_INNER_SESSION; registry: FIRST_MESSAGE_NUMBER; "
        "parts.clients.own_subscriptions: DETACHED; "
        "parts.clients.table: NO_PEER; parts.publishers: _AFTER_NUMBER_ONLY; "
        "client.handle: _ALL; client.tokens: _FULL"
    ),
    MESSAGES: (
        "delta_tree.tombstones: NUMBER_BITS LAST_NUMBER; "
        "durable.filtering_subsystem: _WORD; parts.clients.table: MOST_INSTANCE_BYTES; "
        "client.client: _INSTANCE_BYTES; client.state_encoding: _CHECKSUM_BYTES; "
        "storage.log_groups: SALT_BYTES SEAL_BYTES; storage.files: TAG_BYTES"
    ),
    TIMED: (
        "durable.retention: _EXCESS_PAUSE_NS; ges.dissemination: DEAREST; ges.membership: LOOKS; "
        "ges.overload: CHECKS_TO_RISE CHECKS_TO_FALL WITNESSES; ges.profile_graph: REPETITIONS; "
        "ges.roaming: CHECKS_TO_DEPART CHECKS_TO_STAY STEPS; "
        "multi_proxy.server: _TIMEOUTS_BEFORE_REPETITION"
    ),
    REFUSED: (
        "delta_tree.partition_table: LIVE_LIMIT; delta_tree.vectors: HIGHEST_STAMP LONGEST_SPAN; "
        "durable.consumers: MOST_UNCOMMITTED; "
        "ges.propagation: ENTRIES_LIMIT; ges.router: HOPS_PER_LEVEL; "
        "ges_reliable.core: HOPS_PER_LEVEL; parts.bounds: NUMBER_LEAP; "
        "client.arguments: _LARGEST _SHOWN; client.consumer: _MOST_UNCOMMITTED; "
        "client.store: STORE_LIMIT_BYTES"
    ),
    FORGOTTEN: (
        "client.received_positions: RANGE_LIMIT; "
        "durable.holds: _REMOVALS; parts.clients.progress: MOST_PUBLISHERS WRITE_INTERVAL_NS; "
        "parts.log_marks: STARTS_KEPT"
    ),
    PARAMETER: "durable.parameters: _LINGER_NS; ges_reliable.parameters: _KEPT_NS",
    REAL: (
        "client.arguments: _REMEMBERED_BLOBS; client.client: WINDOW_PUBLICATIONS "
        "UNREACHABLE_AFTER_S; client.broker_choice: RECONNECT_FIRST_S RECONNECT_LIMIT_S "
        "REDIRECTED_FOR_S; client.broker_connection: RETRY_S LEAVING_S; "
        "client.inbox: INBOX_LIMIT_BYTES; client.waits: _CHECKPOINT_EVERY; "
        "storage.log_groups: _PLACE_EVERY_BYTES; storage.log_volume: SEGMENT_BYTES; "
        "storage.files: _GROWTH_BYTES; storage.sqlite_store: MOST_SHARES"
    ),
}
"""The numbers that no seed lowers, by reason; modules of protocols without `protocols`."""


def undrawn() -> Iterator[str]:
    for text in UNDRAWN.values():
        for of_module in text.split("; "):
            module, _, names = of_module.partition(": ")
            known = (PACKAGE / module.partition(".")[0]).is_dir()
            package = "brokerd" if known else "brokerd.protocols"
            yield from (f"{package}.{module}.{name}" for name in names.split())


def numbers_of(path: Path) -> Iterator[str]:
    """Yield the names of a module's constants that are numbers."""
    for node in ast.parse(path.read_text("utf-8")).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(target, ast.Name):
            continue
        inside = [*ast.walk(node.value)] if node.value is not None else []
        made = (ast.Call, ast.Tuple, ast.Dict, ast.List, ast.Set, ast.JoinedStr)
        values = [each.value for each in inside if isinstance(each, ast.Constant)]
        is_number = bool(values) and all(type(value) in (int, float) for value in values)
        if is_number and not any(isinstance(each, made) for each in inside):
            yield target.id


def test_each_number_of_a_core_is_lowered_by_seeds_or_stands_with_a_reason() -> None:
    found = {
        f"brokerd.{'.'.join(path.relative_to(PACKAGE).with_suffix('').parts)}.{name}"
        for folder in FOLDERS
        for path in sorted((PACKAGE / folder).rglob("*.py"))
        if "checks" not in path.parts
        for name in numbers_of(path)
    }
    lowered = {limit.name for protocol in DEFINITIONS for limit in limits_of(protocol)}
    listed = [*undrawn()]
    assert len(listed) == len({*listed})
    assert found - lowered == {*listed}


@pytest.mark.parametrize("protocol", sorted(DEFINITIONS))
def test_seeds_lower_each_limit(protocol: str) -> None:
    drawn = {
        name
        for seed in range(LATE + 1, LATE + 1 + PLANS)
        for name, _ in draw_plan(seed, protocol).limits
    }
    assert drawn == {limit.name for limit in limits_of(protocol)}


@pytest.mark.parametrize("protocol", sorted(DEFINITIONS))
def test_early_seeds_keep_their_limits(protocol: str) -> None:
    late = {limit.name for limit in limits_of(protocol) if limit.since}
    early = [name for seed in range(LATE) for name, _ in draw_plan(seed, protocol).limits]
    assert late.isdisjoint(early)


@pytest.mark.parametrize("protocol", ["gryphon", "ges_reliable"])
def test_a_cluster_with_low_late_limits_loses_nothing(protocol: str) -> None:
    late = {limit.name for limit in limits_of(protocol) if limit.since}
    seeds = range(1_001, 1_060)
    chosen = next(
        seed for seed in seeds if late & {name for name, _ in draw_plan(seed, protocol).limits}
    )
    report = run_seed(chosen, protocol)
    assert not report.violations, report.describe()
