"""Tests of the start of the command: slow modules are imported only by verbs that need them.

No story here measures time: `python -m tests.pubsubctl.test_startup` prints the processor time of a
few command lines.
"""

import os
import resource
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from brokerd.protocols.registry import DEFINITIONS
from pubsubctl import entry
from tests.pubsubctl.conftest import Call

SLOW = (
    *("pydantic", "trio", "numpy", "pandas", "pyarrow", "pyspark", "matplotlib", "jinja2", "rich"),
    *("cbor2", "psutil", "importlib.metadata"),
    *("brokerd.protocols.registry", "brokerd.overlay.topology", "bench.run", "results.checker"),
    *("brokerd.simulator", "fault_injection.schedule", "pubsubctl.runs.runs"),
)
UNUSED_BY_STATUS = (
    *("brokerd.protocols.registry", "brokerd.wire.codec", "brokerd.simulator"),
    *("pydantic", "brokerd.overlay.topology", "pubsubctl.deployment.certificates"),
)
MEASURED = (
    ("--version",), ("bench", "--help"), ("help", "tour"), ("config", "show"), ("results", "list"),
    ("topology", "lint", "demo"), ("workload", "lint", "demo"), ("claims", "list"), ("status",),
)  # fmt: skip
COMPLETION = {
    "_PUBSUBCTL_COMPLETE": "complete_bash", "COMP_WORDS": "pubsubctl bench de", "COMP_CWORD": "2",
}  # fmt: skip


def modules_after(statement: str, *arguments: str) -> set[str]:
    """Return the modules that a fresh interpreter has imported after a statement."""
    script = f"import sys\ntry:\n    {statement}\nexcept SystemExit:\n    pass\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


def test_the_verbs_are_listed_without_slow_modules() -> None:
    found = modules_after("import pubsubctl.commands.app")
    assert "typer" in found
    assert [name for name in SLOW if name in found] == []


def test_the_version_needs_no_verbs() -> None:
    found = modules_after("from pubsubctl.entry import main; main()", "--version")
    assert [name for name in ("typer", "pubsubctl.commands.app") if name in found] == []


@pytest.mark.parametrize("mask", [0, 0o002, 0o022, 0o077])
def test_files_of_a_command_are_never_writable_for_all_users(
    mask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other users could replace private folders in such a folder."""
    monkeypatch.setattr(sys, "argv", ["pubsubctl", "--version"])
    before = os.umask(mask)
    try:
        with pytest.raises(SystemExit):
            entry.main()
        (tmp_path / "state" / "crashes").mkdir(mode=0o700, parents=True)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o777 & ~(mask | 0o002)


def test_a_command_without_assertions_starts_again_with_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under PYTHONOPTIMIZE, help texts were empty, and swarms found no failed assertion."""
    words = ["/bin/python", "-m", "pubsubctl", "status"]
    flags = SimpleNamespace(optimize=2)
    own = SimpleNamespace(flags=flags, executable="/python", orig_argv=words, exit=sys.exit)
    monkeypatch.setattr(entry, "sys", own)
    started: list[tuple[str, list[str], str | None]] = []

    def execute(path: str, arguments: list[str]) -> None:
        started.append((path, arguments, os.environ.get("PYTHONOPTIMIZE")))

    monkeypatch.setattr(os, "execv", execute)
    for value in ("2", ""):
        monkeypatch.setenv("PYTHONOPTIMIZE", value)
        with pytest.raises(SystemExit, match="2"):  # `-O` alone
            entry._restore_checks()
    assert started == [("/python", ["/python", "-m", "pubsubctl", "status"], None)]
    flags.optimize = 0
    entry._restore_checks()


def modules_of(*arguments: str) -> set[str]:
    """Return the modules that a command line imports."""
    command = [sys.executable, "-X", "importtime", "-m", "pubsubctl", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}


@pytest.mark.parametrize("words", [["bench", "--help"], ["inject", "--list"], ["config", "show"]])
def test_plain_options_are_read_without_pydantic(words: list[str]) -> None:
    found = modules_of(*words)
    assert "typer" in found
    assert [name for name in ("pydantic", "typer._adapters") if name in found] == []


def test_status_needs_neither_protocols_nor_pydantic(call: Call) -> None:
    found = modules_of("status")
    assert "pubsubctl.hosts.hosts" in found
    assert [name for name in UNUSED_BY_STATUS if name in found] == []


def test_bench_finds_its_workload_without_a_simulator_or_a_protocol(call: Call) -> None:
    found = modules_of("bench", "no-such-workload")
    assert "bench.spec.spec" in found
    unused = "brokerd.simulator.world", *(f"brokerd.protocols.{name}" for name in DEFINITIONS)
    assert [name for name in found if name.startswith(unused)] == []


@pytest.mark.parametrize(
    "words, said",
    [
        ("publish a --count 0", "'--count': 0: a whole number from 1 to 10,000,000"),
        ("publish a --count two", "'--count': two: a whole number from 1 to 10,000,000"),
        ("bench demo --seed -1", "'--seed': -1: a whole number from 0"),
        ("bench demo --instances 10000", "'--instances': 10000: a whole number from 1 to 1,000"),
        (
            f"inject kill --seed {1 << 63}",
            f"'--seed': {1 << 63}: a whole number from 0 to {(1 << 63) - 1:,}",
        ),
        ("-f 2000 status", "'--forks' / '-f': 2000: a whole number from 1 to 1,024"),
    ],
)
def test_a_number_out_of_range_is_named_with_its_range(call: Call, words: str, said: str) -> None:
    answer = call(*words.split())
    assert answer.status == 2
    assert answer.err.splitlines()[0] == f"error: invalid value for {said}"


@pytest.mark.parametrize(
    "words, place, offered",
    [
        ("pubsubctl be", "1", "bench"),
        ("pubsubctl bench de", "2", "demo"),
        ("pubsubctl -i local bench de", "4", "demo"),
        ("pubsubctl results la", "2", "label"),
        ("pubsubctl bench --ra", "2", "--rate"),
        ("pubsubctl bench demo --protocol gr", "4", "gryphon"),
        ("pubsubctl simulate run de", "3", "demo"),
        ("pubsubctl schema sw", "2", "sweep"),
        ("pubsubctl --color al", "2", "always"),
        ("pubsubctl claims explain churn.gry", "3", "churn.gryphon-growth"),
    ],
)
def test_a_shell_completes_verbs_options_and_files(words: str, place: str, offered: str) -> None:
    asked = {"COMP_WORDS": words, "COMP_CWORD": place}
    done = subprocess.run(
        [sys.executable, "-m", "pubsubctl"],
        env={**os.environ, **COMPLETION, **asked},
        capture_output=True,
        text=True,
    )
    assert offered in done.stdout.split()


def cpu_s_of(arguments: tuple[str, ...], environment: dict[str, str]) -> float:
    """Return the processor time of a command line: the minimum of five runs."""
    found = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "pubsubctl", *arguments],
            env={**os.environ, **environment},
            capture_output=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(found)


if __name__ == "__main__":
    rows = [(cpu_s_of(line, {}), " ".join(line)) for line in MEASURED]
    rows.append((cpu_s_of((), COMPLETION), "completion of `bench de`"))
    sys.stdout.writelines(f"{cpu_s:6.2f} s  {name}\n" for cpu_s, name in rows)
