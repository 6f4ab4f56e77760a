"""The distribution of tests over the workers of `make test`."""

import ast
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Final

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

ROOT: Final = Path(__file__).parents[2]
BY_FILE: Final = "loadfile"
SPARK: Final = "spark"
ARCHITECTURE: Final = "architecture"
"""A folder whose tests parse all modules, and share the trees."""
LAB: Final = "lab"
"""A folder whose tests share test hosts, where the program is installed once."""

LONGEST: Final = (
    "results/test_false_witnesses",
    "protocols/gryphon/test_swarm",
    "simulator/test_swarm",
    "protocols/durable/test_disk_crashes",
    "lab/test_interrupted",
    "lab/test_over_ssh",
    "end_to_end/test_bench",
    "end_to_end/test_deploy",
    "protocols/durable/test_swarm",
    "protocols/test_foreign_protocol",
    "end_to_end/test_foreign_protocol",
    "pubsubctl/test_simulate",
    "simulator/test_mutants",
    "simulator/test_plans",
    "end_to_end/test_faults",
    "end_to_end/test_rolling",
    "end_to_end/test_releases",
    "runtime/test_lost_state",
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
    "simulator/test_relayed_sessions",
    "pubsubctl/test_interrupted_spark",
    "storage/test_crashes",
    "architecture/test_import_layers",
    "architecture/test_protocol_names",
    "simulator/test_repeated_seeds",
    "protocols/multi_proxy/test_swarm",
    "protocols/ges/test_swarm",
    "protocols/ges_reliable/test_swarm",
    "wire/test_codec",
    "simulator/test_drawn_parameters",
    "simulator/test_answer_orders",
    "pubsubctl/test_hostile_files",
    "pubsubctl/test_bundle",
    "test_named_bugs",
    "protocols/delta_tree/test_fast_path",
)
"""The slowest files, after those that use Spark; an early start shortens the whole run."""

_USES_SPARK: Final = re.compile(r"\bdef \w+\((?:[^()]|\([^()]*\))*\bspark\b")
_WAITS: Final = re.compile(
    r"\bmark\.(?:end_to_end|lab)\b|\btests\.helpers\.(?:agents|ssh_server)\b"
)
_CORES: Final = len(os.sched_getaffinity(0))


class FilesOfWorkers(LoadScopeScheduling):
    """Files for workers: a file runs at one worker, in order, and Spark's files at the same worker.

    A Spark session per worker would be as many Java machines of some gigabytes, each with a
    warm-up. Likewise test hosts: each worker would install the program on hosts of its own.

    Tests of real processes mostly wait. As many workers as there are cores take other files while
    some remain; if all workers waited, the cores would idle.
    """

    _places: dict[str, int] | None = None

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        assert self.collection is not None
        if self._places is None:
            self._places = {nodeid: place for place, nodeid in enumerate(self.collection)}
        running = (
            file
            for files in self.assigned_work.values()
            for file, tests in files.items()
            if not all(tests.values())
        )
        file = next_file(self.workqueue, running, max(1, len(self.nodes) - _CORES))
        tests = self.assigned_work[node][file] = self.workqueue.pop(file)
        node.send_runtest_some(
            [self._places[test] for test, is_over in tests.items() if not is_over]
        )


def unit_of(nodeid: str) -> str:
    """Return the name of the tests that a worker runs together: a file, or a group.

    The group of Spark has the tests with its fixture, but no other tests of their files. Otherwise
    other tests take most of the time of Spark's worker.
    """
    file, _, test = nodeid.partition("::")
    for folder in (ARCHITECTURE, LAB):
        if file.startswith(f"tests/{folder}/"):
            return folder
    if not uses_spark(file):
        return file
    function = test.partition("[")[0].rpartition("::")[2]
    return SPARK if function in _functions_with_spark(file) else file


def next_file(files: Iterable[str], running: Iterable[str], most_waiting: int) -> str:
    """Return the first file that fits the running files, or else the first file.

    Args:
        files: all files that no worker runs.
        running: files that other workers run.
        most_waiting: maximum number of running files that mostly wait.
    """
    ordered = [*files]
    wanted = sum(map(waits, running)) < most_waiting
    return next((file for file in ordered if waits(file) == wanted), ordered[0])


def describe_shares(reports: Iterable[pytest.TestReport]) -> Iterator[str]:
    """Yield the end of each worker, with the last file, and the files that took longest.

    Times are from the start of the first test, setup and teardown included.
    """
    known = [each for each in reports if hasattr(each, "worker_id")]
    if not known:
        return
    began = min(each.start for each in known)
    ends: dict[str, tuple[float, str]] = {}
    files: Counter[str] = Counter()
    for each in known:
        file = each.nodeid.partition("::")[0].removeprefix("tests/")
        ends[each.worker_id] = max(ends.get(each.worker_id, (0.0, "")), (each.stop, file))
        files[file] += each.stop - each.start
    for worker, (end, file) in sorted(ends.items(), key=itemgetter(1)):
        yield f"{worker} ended after {end - began:.0f} s with {file}"
    longest = ", ".join(f"{file} {took:.0f} s" for file, took in files.most_common(20))
    yield f"longest files: {longest}"


def begins_with(item: pytest.Item) -> int:
    """Return the place of a test's file: Spark's, then the longest, then all others."""
    if unit_of(item.nodeid) == SPARK:
        return -1
    name = item.nodeid.partition("::")[0].removeprefix("tests/").removesuffix(".py")
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)


@cache
def uses_spark(file: str) -> bool:
    """Return whether a function of this file requires the Spark session."""
    return _USES_SPARK.search((ROOT / file).read_text(encoding="utf-8")) is not None


@cache
def _functions_with_spark(file: str) -> frozenset[str]:
    """Return the functions of a file that require the Spark session, directly or by a fixture.

    Return all functions of a file that starts sessions.
    """
    text = (ROOT / file).read_text(encoding="utf-8")
    functions = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    if "spark_session(" in text:
        return frozenset(each.name for each in functions)
    wanted = {
        each.name: {argument.arg for argument in (*each.args.args, *each.args.kwonlyargs)}
        for each in functions
    }
    found = {SPARK}
    while more := {name for name, names in wanted.items() if names & found} - found:
        found |= more
    return frozenset(found)


@cache
def waits(file: str) -> bool:
    """Return whether the tests of this file start real processes, and mostly wait for them."""
    if file in (SPARK, ARCHITECTURE, LAB):
        return file == LAB
    return _WAITS.search((ROOT / file).read_text(encoding="utf-8")) is not None
