"""How the workers of `make test` share the tests."""

import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from xdist.scheduler import LoadScopeScheduling

ROOT: Final = Path(__file__).parents[2]
BY_FILE: Final = "loadfile"
SPARK: Final = "spark"

LONGEST: Final = (
    "protocols/gryphon/test_swarm",
    "simulator/test_swarm",
    "protocols/durable/test_disk_crashes",
    "end_to_end/test_bench",
    "end_to_end/test_deploy",
    "protocols/durable/test_swarm",
    "protocols/test_foreign_protocol",
    "end_to_end/test_foreign_protocol",
    "lab/test_interrupted",
    "lab/test_over_ssh",
    "pubsubctl/test_simulate",
    "simulator/test_mutants",
    "simulator/test_plans",
    "end_to_end/test_faults",
    "end_to_end/test_rolling",
    "simulator/test_adversary",
    "papers/test_mp22",
    "named_bugs/test_caught",
    "simulator/test_campaign",
    "simulator/test_adversary_mutants",
    "lab/test_lab_up_and_down",
    "security/test_slow_subscriber_for_long",
    "bench/test_client_faults",
    "bench/test_experiment",
    "end_to_end/test_client_faults",
    "end_to_end/test_security",
    "agent/test_nft",
    "simulator/test_duplicate_detection",
    "runtime/test_process",
    "simulator/test_assist",
    "pubsubctl/test_interrupted_spark",
    "storage/test_crashes",
    "test_architecture",
    "simulator/test_twice",
    "protocols/multi_proxy/test_swarm",
    "protocols/ges/test_swarm",
    "protocols/ges_reliable/test_swarm",
    "wire/test_codec",
    "simulator/test_drawn_parameters",
    "simulator/test_answer_orders",
    "pubsubctl/test_hostile_files",
    "pubsubctl/test_bundle",
    "test_named_bugs",
    "protocols/delta_tree/test_straight",
)
"""Files that take longest, after those that use Spark: begun last, others would wait for them."""

_USES_SPARK: Final = re.compile(r"\bdef \w+\((?:[^()]|\([^()]*\))*\bspark\b")


class FilesOfWorkers(LoadScopeScheduling):
    """Gives each file to one worker, in the order of the files, and Spark's files to the same.

    A Spark session for each worker would be as many Java machines of some gigabytes, and each
    has to warm up.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return SPARK if uses_spark(file) else file


def begins_with(item: pytest.Item) -> int:
    """The place of a test's file: Spark's, then the longest, then all others."""
    file = item.nodeid.partition("::")[0]
    if uses_spark(file):
        return -1
    name = file.removeprefix("tests/").removesuffix(".py")
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)


@cache
def uses_spark(file: str) -> bool:
    """Whether a function of this file asks for the Spark session."""
    return _USES_SPARK.search((ROOT / file).read_text(encoding="utf-8")) is not None
