"""The parts whose modules are mutated: which tests and which protocols can detect their mutants."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mutation.mutants import ROOT, Mutant

_EQUIVALENTS: Final = Path(__file__).parent / "equivalents.toml"
_COMMON: Final = (
    "tests/protocols/test_client_messages.py",
    "tests/protocols/test_second_time.py",
    "tests/protocols/test_deadlines.py",
    "tests/simulator/test_answer_orders.py",
    "tests/simulator/test_positions.py",
    "tests/simulator/test_recounts.py",
    "tests/simulator/test_growth.py",
)
_OF_TREES: Final = tuple(
    f"tests/simulator/test_{name}.py"
    for name in (
        *("stories", "relayed_sessions", "restored_disks", "separation", "joining"),
        *("unsubscription", "publication_log", "lost_state", "islands_and_barriers"),
        *("started_subscriptions", "restarted_publishers", "troubled_clients", "liveness"),
        *("duplicate_detection", "deliveries_past_failures", "accepted_losses", "client_moves"),
        *("active_sessions", "timeliness", "internals"),
    )
)
_OF_JUDGES: Final = tuple(
    f"tests/results/test_{name}.py"
    for name in (
        *("history_reader", "reference_bounds", "streams", "stretches", "times", "clocks"),
        *("row_counts", "fault_logs", "positions", "churn", "newcomers", "rule_bounds"),
        *("coinciding_ends", "promises", "risks", "withholding", "expectation", "busy_machine"),
        *("witnesses", "reference_check", "both_judges"),
    )
)
_OF_WITNESSES: Final = tuple(
    f"tests/results/test_{name}.py"
    for name in ("announced_gaps", "source_witnesses", "row_counts", "false_witnesses")
)
_OF_COMMANDS: Final = tuple(
    f"tests/pubsubctl/test_{name}.py"
    for name in (
        *("loss_safety", "placement", "placing", "membership", "other_deployments", "plans"),
        *("publication_lines", "bundle", "certificate_warnings", "decommissioning", "startup"),
        *("topologies", "readiness", "subscriptions", "faults_and_workloads", "injection"),
        *("preview", "watch", "logbook", "comparison_selftest", "targets", "heal", "programs"),
    )
)
_OF_TABLES: Final = tuple(
    f"tests/results/test_{name}.py"
    for name in (
        *("logs", "seals", "row_counts", "stretches", "times", "hostile_numbers", "load"),
        *("run_figures", "positions", "retransmissions", "opened_runs", "changed_fields"),
        *("fault_logs", "repetitions", "series_files", "knee_figure", "sweep_figure", "churn"),
    )
)
NEVER: Final = ("test_swarm.py", "test_bugs.py", "test_mutants.py")
"""Tests of swarms, because the seeds are another killer, and tests that plant bugs."""


@dataclass(frozen=True, slots=True)
class Part:
    """The tests of a part, the closest first, and the protocols that run it."""

    tests: tuple[str, ...]
    protocols: tuple[str, ...]


PARTS: Final[Mapping[str, Part]] = {
    "brokerd/protocols/delta_tree": Part(
        ("tests/protocols/delta_tree", *_OF_TREES, *_COMMON), ("delta_tree",)
    ),
    "brokerd/protocols/gryphon": Part(
        ("tests/protocols/gryphon", *_COMMON), ("gryphon", "durable")
    ),
    "brokerd/protocols/durable": Part(("tests/protocols/durable", *_COMMON), ("durable",)),
    "brokerd/protocols/ges": Part(("tests/protocols/ges", *_COMMON), ("ges", "ges_reliable")),
    "brokerd/protocols/ges_reliable": Part(
        ("tests/protocols/ges_reliable", *_COMMON), ("ges_reliable",)
    ),
    "brokerd/protocols/multi_proxy": Part(
        ("tests/protocols/multi_proxy", *_COMMON), ("multi_proxy",)
    ),
    "brokerd/protocols/best_effort": Part(
        ("tests/protocols/best_effort", *_COMMON), ("best_effort",)
    ),
    "brokerd/protocols/parts": Part(
        ("tests/protocols", "tests/simulator/test_stories.py"), ("delta_tree", "durable")
    ),
    "brokerd/client": Part(("tests/client", *_COMMON), ("delta_tree", "durable")),
    "brokerd/sessions": Part(
        (
            "tests/sessions",
            "tests/security/test_tls.py",
            "tests/protocols/best_effort",
            "tests/simulator/test_stories.py",
            *_COMMON,
        ),
        ("delta_tree", "gryphon"),
    ),
    "brokerd/storage": Part(
        ("tests/storage", "tests/simulator/test_disk.py", *_COMMON),
        ("durable", "multi_proxy"),
    ),
    "brokerd/runtime": Part(("tests/runtime", "tests/security/test_connections.py"), ()),
    "brokerd/agent": Part(("tests/agent",), ()),
    "brokerd/overlay": Part(("tests/overlay", "tests/pubsubctl/test_topologies.py"), ()),
    "brokerd/matching": Part(("tests/matching",), ()),
    "brokerd/model": Part(("tests/model", "tests/wire"), ()),
    "brokerd/wire": Part(("tests/wire",), ()),
    "bench/spec": Part(("tests/bench",), ()),
    "bench/systems": Part(("tests/bench/systems",), ()),
    "bench/load": Part(("tests/bench", "tests/results/test_stretches.py"), ()),
    "bench/run": Part(("tests/bench",), ()),
    "fault_injection": Part(("tests/fault_injection", "tests/pubsubctl/test_comparisons.py"), ()),
    "pubsubctl/deployment": Part(_OF_COMMANDS, ()),
    "pubsubctl/injection": Part(_OF_COMMANDS, ()),
    "pubsubctl/monitor": Part(_OF_COMMANDS, ()),
    "results/reference": Part(_OF_JUDGES, ()),
    "results/rules": Part(_OF_JUDGES, ()),
    "results/repetitions": Part((*_OF_TABLES, "tests/pubsubctl/test_comparisons.py"), ()),
    "results/tables": Part((*_OF_TABLES, *_OF_WITNESSES), ()),
    "results/witnesses": Part(_OF_WITNESSES, ()),
}
"""The part of a module, by the longest folder that holds the module."""


def part_of(module: str) -> str:
    """Return the folder of the part of a module or folder."""
    found = [each for each in PARTS if f"{module}/".startswith(f"{each}/")]
    assert found, f"{module} belongs to none of {[*PARTS]}"
    return max(found, key=len)


def modules_of(path: str) -> list[str]:
    """Return the modules of a path of the project, without checkers; a module stands for itself."""
    if (ROOT / path).is_file():
        return [path]
    found = sorted((ROOT / path).rglob("*.py"))
    names = [str(each.relative_to(ROOT)) for each in found]
    assert names, f"{path} has no modules"
    return [each for each in names if "/checks/" not in each and not each.endswith("__.py")]


def equivalents() -> dict[str, str]:
    """Return the mutants that no test can detect, with the reasons."""
    rows = tomllib.loads(_EQUIVALENTS.read_text(encoding="utf-8")).get("equivalent", [])
    return {f"{row['module']} {row['function']}: {row['change']}": row["reason"] for row in rows}


def is_equivalent(mutant: Mutant) -> bool:
    """Return whether a mutant is listed as equivalent."""
    return mutant.key in equivalents()
