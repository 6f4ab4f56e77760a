"""Tests of the lock files: complete, hash-checked, and free of download sources."""

import os
import re
import subprocess
import sysconfig
import tomllib
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from tests.helpers.compiled import compile_all, stale
from tests.helpers.workers import (
    LAB,
    LONGEST,
    SPARK,
    describe_shares,
    next_file,
    unit_of,
    uses_spark,
    waits,
)

ROOT = Path(__file__).parents[1]
LOCKS = ("build.lock", "requirements.lock")


def locked(lock: str) -> dict[str, list[str]]:
    """Return the entries per package name; a package may have one entry per platform."""
    text = (ROOT / ".setup" / lock).read_text(encoding="utf-8")
    entries: dict[str, list[str]] = {}
    for entry in re.split(r"\n(?=[a-z0-9])", text):
        entries.setdefault(re.split(r"[=<>;\[ ]", entry, maxsplit=1)[0], []).append(entry)
    return entries


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_package_has_one_version_and_hashes(lock: str) -> None:
    for entries in locked(lock).values():
        for entry in entries:
            assert re.match(r"[a-z0-9-]+==\S+", entry), entry
            assert "--hash=sha256:" in entry, entry


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_file_contains_no_package_origins(lock: str) -> None:
    text = (ROOT / ".setup" / lock).read_text(encoding="utf-8")
    assert not re.search(r"://|--(extra-)?index-url|--find-links| @ |file:", text)


def test_every_declared_dependency_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    declared = [*project["dependencies"], *(name for extra in extras for name in extra)]
    names = {re.match(r"[a-z0-9-]+", requirement).group() for requirement in declared}
    assert names <= locked("requirements.lock").keys(), "run `make locks`"


def test_a_folder_of_a_user_does_not_hide_a_package_of_the_same_name(tmp_path: Path) -> None:
    """The path of an installation has the package; import hooks follow the folders of the path."""
    (tmp_path / "results").mkdir()
    found = PathFinder.find_spec("results", [str(tmp_path), str(ROOT)])
    assert found is not None
    assert found.origin == str(ROOT / "results" / "__init__.py")
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "--config-settings editable_mode=compat --editable ." in recipe
    hooks = Path(sysconfig.get_path("purelib")).glob("__editable___pubsubctl_*_finder.py")
    assert not [*hooks], "an older installation: run `make setup`"


STAND_IN = """\
#!/bin/bash
echo "$*" >> "$0.calls"
case "$*" in
{cases}
esac
"""


def made(folder: Path, program: str, cases: str, *arguments: str) -> tuple[int, list[str]]:
    """Return the status of `make`, and the calls of a stand-in for a program of the project."""
    path = folder / program
    path.write_text(STAND_IN.format(cases=cases))
    path.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    command = ["make", "--old-file=setup", f"BIN={folder}", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, (folder / f"{program}.calls").read_text().splitlines()


@pytest.mark.parametrize("ended, status", [(0, 0), (1, 2), (5, 2)])
def test_the_whole_suite_runs_but_for_the_browser_and_its_status_counts(
    tmp_path: Path, ended: int, status: int
) -> None:
    cases = f"*compile*) exit 0;; *) exit {ended};;"
    came, calls = made(tmp_path, "python", cases, "test", "TEST_OPTIONS=-k delta")
    assert came == status
    compiled, rewritten, call = calls
    assert compiled.startswith("-m compileall ")
    assert rewritten == "-m tests.helpers.compiled"
    assert call.startswith("-m pytest -m not report -n ")
    assert call.endswith(" -k delta")


def test_files_that_use_spark_are_distinguished_from_others() -> None:
    assert uses_spark("tests/results/test_checks.py")
    assert uses_spark("tests/pubsubctl/test_figure_experiments.py")
    assert not uses_spark("tests/results/test_java.py")
    assert not uses_spark("tests/pubsubctl/test_interrupted_spark.py"), "it starts its own"


def test_every_test_with_the_spark_fixture_runs_among_sparks(
    request: pytest.FixtureRequest,
) -> None:
    with_spark = [
        item.nodeid
        for item in request.session.items
        if "spark" in getattr(item, "fixturenames", ())
    ]
    assert [each for each in with_spark if unit_of(each) != SPARK] == []


def test_the_files_that_are_begun_first_are_there() -> None:
    assert [name for name in LONGEST if not (ROOT / "tests" / f"{name}.py").is_file()] == []


def test_files_that_share_test_hosts_or_spark_run_at_one_worker() -> None:
    lab = {unit_of(f"tests/lab/{name}.py") for name in ("test_interrupted", "test_over_ssh")}
    assert lab == {LAB}
    assert waits(LAB)
    assert not waits(SPARK)
    promises = "tests/results/test_promises.py"
    assert unit_of(f"{promises}::test_both_agree_on_whatever_may_be_promised_and_happen") == SPARK
    assert unit_of(f"{promises}::test_a_promise[x]") == promises
    assert (
        unit_of("tests/results/test_spark.py::test_a_cluster_session_does_not_use_loopback")
        == SPARK
    )
    alone = "tests/end_to_end/test_bench.py"
    assert unit_of(alone) == alone


def test_as_many_workers_as_cores_take_files_that_do_not_wait() -> None:
    bench, deploy = "tests/end_to_end/test_bench.py", "tests/end_to_end/test_deploy.py"
    units, more = "tests/client/test_core.py", "tests/agent/test_disk.py"
    assert next_file([SPARK, bench, units, deploy], [], 1) == bench
    assert next_file([deploy, SPARK, units], [bench], 1) == SPARK
    assert next_file([units, deploy], [bench, SPARK], 2) == deploy
    assert next_file([units, more], [SPARK], 1) == units, "nothing is left that waits"
    assert next_file([deploy], [bench, SPARK], 1) == deploy, "nothing is left that does not"


@pytest.mark.parametrize(
    "up, demo, status, said",
    [(4, 0, 2, ["up"]), (0, 0, 0, ["up", "demo", "down"]), (0, 1, 2, ["up", "demo", "down"])],
)
def test_lab_hosts_are_removed_if_they_were_started(
    tmp_path: Path, up: int, demo: int, status: int, said: list[str]
) -> None:
    cases = f"*up*) exit {up};; *demo) exit {demo};;"
    came, calls = made(tmp_path, "pubsubctl", cases, "lab-demo", "LAB=x")
    assert came == status
    assert calls == [
        {"up": "lab up --name x --hosts 8", "demo": "-i x demo", "down": "lab down --name x"}[verb]
        for verb in said
    ]


def test_test_modules_are_compiled_once_before_the_workers_begin(tmp_path: Path) -> None:
    module = tmp_path / "test_some.py"
    module.write_text("def test_some():\n    assert [1] == [1]\n")
    (tmp_path / "helper.py").write_text("")
    assert [*stale(tmp_path)] == [module]
    compile_all([module])
    assert [*stale(tmp_path)] == []
    module.write_text("def test_some():\n    assert [2] == [2]\n")
    assert [*stale(tmp_path)] == [module]


def test_a_run_prints_when_each_worker_ended_and_the_longest_files() -> None:
    def report(worker: str, file: str, start: float, stop: float) -> pytest.TestReport:
        place = (file, 1, "test_a")
        return pytest.TestReport(
            f"tests/{file}::test_a", place, {}, "passed", None, "call",
            start=start, stop=stop, worker_id=worker,
        )  # fmt: skip

    assert [*describe_shares([])] == []
    reports = [
        report("gw0", "b.py", 12, 40),
        report("gw1", "a.py", 10, 12),
        report("gw0", "c.py", 10, 12),
        report("gw1", "a.py", 12, 15),
    ]
    assert [*describe_shares(reports)] == [
        "gw1 ended after 5 s with a.py",
        "gw0 ended after 30 s with b.py",
        "longest files: b.py 28 s, a.py 5 s, c.py 2 s",
    ]
