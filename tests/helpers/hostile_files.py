"""Files of users with hostile values in place of each number, and the outcomes of commands.

Each case runs in its own process with little memory and processor time, so that a number that is
trusted causes a signal. As a program, the module prints one JSON object per case.
"""

import json
import os
import resource
import signal
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

from brokerd.text import toml_text
from tests.helpers.patience import PATIENCE_S

REPOSITORY: Final = Path(__file__).parents[2]
SECONDS: Final = 5
MEMORY_BYTES: Final = 3 << 30
HOSTILE: Final = (
    *("-1", "0", "2147483648", "1000000000", "9223372036854775807", "1180591620717411303424"),
    *("nan", "inf", "-inf", "1e308", "-9223372036854775808"),
)
_DURATIONS: Final = ("-1s", "99999999999999999999s", "0s", "9999h")
_MARK: Final = "@hostile@"


_EXPERIMENT: Final = "bench.papers.experiments:load_figure_experiment"


class Kind(NamedTuple):
    """A kind of file: an example, and the command, or `module:function`, that reads the kind."""

    example: str
    command: tuple[str, ...]


KINDS: Final[Mapping[str, Kind]] = {
    "workload": Kind("bench/workloads/demo.toml", ("bench", "{}", "--dry-run")),
    "workload with churn": Kind("bench/workloads/ds03-churn.toml", ("bench", "{}", "--dry-run")),
    "workload with topics": Kind("bench/workloads/topics.toml", ("bench", "{}", "--dry-run")),
    "topology": Kind("bench/topologies/t22-stored.toml", ("topology", "lint", "{}")),
    "topology of a tree": Kind("bench/topologies/demo.toml", ("topology", "lint", "{}")),
    "topology of proxies": Kind("bench/topologies/mp22-causal.toml", ("topology", "lint", "{}")),
    "inventory": Kind("inventories/local.toml", ("inventory", "lint", "{}")),
    "sweep": Kind("bench/sweeps/t22-anybroker.toml", ("sweep", "{}", "--dry-run")),
    "comparison": Kind("bench/comparisons/s1.toml", ("bench.systems.comparison:load_comparison",)),
    "deployed experiment": Kind(
        "bench/experiments/gd02-fig6.toml", ("experiment", "{}", "--dry-run")
    ),
    **{
        name: Kind(f"bench/experiments/{name}.toml", (_EXPERIMENT,))
        for name in (
            *("dft11-fig10-small", "dft11-fig12", "control-churn", "mp22-m6", "ds03-pfs"),
            *("dft11-exclusions", "dft11-queue", "dft11-bypass", "dft11-starts", "ges-load"),
            *("ges-scale", "ds03-jms", "mp22-m3", "mp22-m7", "mp22-m8"),
        )
    },
    "targets": Kind("bench/targets/performance.toml", ("bench.spec.targets:load_targets",)),
    "faults": Kind("fault_injection/demo.toml", ("bench", "demo", "--faults", "{}", "--dry-run")),
    "system": Kind("bench/systems/jetstream/jetstream3.toml", ("bench", "{}", "--dry-run")),
    "claims": Kind("bench/claims/ds03.toml", ("pubsubctl.runs.claims:load_claims",)),
    "settings": Kind("pubsubctl.toml", ("config", "show")),
}


_ONE_OF_A_READER: Final = ("workload", "topology", "inventory", "faults", "settings", "claims")
"""Kinds with distinct readers; other kinds share the reader of one of these."""


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield each number and each text that begins with one, with its place in a document."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from places(each, (*place, key))
    elif isinstance(value, list):
        for number, each in enumerate(value[:2]):
            yield from places(each, (*place, number))
    elif isinstance(value, bool):
        return
    elif isinstance(value, int | float) or (isinstance(value, str) and value[:1].isdigit()):
        yield place, value


def spoil(document: Mapping[str, Any], place: tuple[Any, ...], token: str) -> str:
    """Return a document as text with a token in one place."""
    changed: Any = deepcopy(dict(document))
    target = changed
    for part in place[:-1]:
        target = target[part]
    target[place[-1]] = _MARK
    return toml_text(changed).replace(f'"{_MARK}"', token)


def cases(kind: str) -> Iterator[tuple[str, str]]:
    """Yield each case of a kind: its name, and the text of the file."""
    document = tomllib.loads((REPOSITORY / KINDS[kind].example).read_text())
    yield "as it is", toml_text(document)
    for place, value in places(document):
        tokens = HOSTILE
        if isinstance(value, str):
            tokens = ("nan", "1180591620717411303424", *(f'"{text}"' for text in _DURATIONS))
        for token in tokens:
            name = ".".join(str(part) for part in place)
            yield f"{name} = {token}", spoil(document, place, token)
    if kind not in _ONE_OF_A_READER:
        return
    yield "nesting", f"deep = {'[' * 100_000}{']' * 100_000}\n"
    yield "a long key", f"{'.'.join('a' * 20_000)} = 1\n"
    yield "a long table", f"[{'.'.join('a' * 20_000)}]\nx = 1\n"
    yield "a number of 10,000 digits", f"seed = {'9' * 10_000}\n"


def outcome(kind: str, text: str, folder: Path) -> tuple[int, str, float]:
    """Return the command's status, or minus the signal that ended the command; output; time.

    The time is the processor's, which does not depend on other load of the machine.
    """
    name = "pubsubctl.toml" if kind == "settings" else "hostile.toml"
    (folder / name).write_text(text)
    said = folder / "said"
    child = os.fork()
    if not child:
        _carry_out(KINDS[kind].command, folder / name, said)
    _, status, used = os.wait4(child, 0)
    (folder / name).unlink()
    took_s = used.ru_utime + used.ru_stime
    return os.waitstatus_to_exitcode(status), said.read_text()[-400:], took_s


def _carry_out(command: tuple[str, ...], path: Path, said: Path) -> None:
    """Run the command in this process, and end it."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.setitimer(signal.ITIMER_PROF, 4 * SECONDS)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os._exit(_run(command, path, said))


def _run(command: tuple[str, ...], path: Path, said: Path) -> int:
    """Run the command, and return its status."""
    from pubsubctl.commands.app import run

    with said.open("w") as file, redirect_stdout(file), redirect_stderr(file):
        os.chdir(path.parent)
        module, _, function = command[0].partition(":")
        if function:
            return _status_of(getattr(import_module(module), function), path)
        return run([part.format(path) for part in command])


def _status_of(read: Callable[[Path], object], path: Path) -> int:
    """Return the exit status of a command that reads a file with this function."""
    try:
        read(path)
    except Exception as error:
        sys.stdout.write(f"{type(error).__name__} {error}\n")
        return getattr(error, "exit_status", 70)
    return 0


def _import_modules(kind: str, folder: Path) -> None:
    """Run the command of a kind on its example, so that no child imports its modules again."""
    path = folder / ("pubsubctl.toml" if kind == "settings" else "hostile.toml")
    path.write_text(next(cases(kind))[1])
    _run(KINDS[kind].command, path, folder / "said")
    path.unlink()


def main(kinds: list[str], one_in: int) -> None:
    """Print the outcomes of some kinds, for all cases or one in `one_in`."""
    import pubsubctl.commands.app  # noqa: F401  once, and not in every child

    with tempfile.TemporaryDirectory() as name:
        for of in ("STATE", "CONFIG", "CACHE"):
            os.environ[f"XDG_{of}_HOME"] = f"{name}/{of.lower()}"
        for kind in kinds:
            _import_modules(kind, Path(name))
            for number, (case, text) in enumerate(cases(kind)):
                is_sampled = number % one_in == len(kind) % one_in
                if not is_sampled and case.partition(" ")[0] not in ("nesting", "a", "as"):
                    continue
                status, said, took_s = outcome(kind, text, Path(name))
                row = {"kind": kind, "case": case, "status": status, "said": said, "s": took_s}
                sys.stdout.write(json.dumps(row) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[2:] or [*KINDS], int(sys.argv[1]))
