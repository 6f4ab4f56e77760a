"""The outcome of a seed, for swarm and adversary."""

import traceback
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from brokerd.simulator.checks import violations as violations_module
from brokerd.simulator.checks.oracle import Oracle
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.text import counted


@dataclass(frozen=True, slots=True)
class SeedReport:
    """The outcome of one seed, or of one plan.

    Attributes:
        seed: the seed; -1 for a plan from elsewhere.
        digest: digest of the history; the same for the same seed and code on every machine.
        rule: rule of the first violation; "" for none.
        violations: the first violations, in words.
        counters: the ledger of events, so that an empty run is visible as empty.
        last_steps: steps before the violation, oldest first, if kept.
        command: repeats this seed.
    """

    seed: int
    protocol: str
    digest: str
    rule: str
    violations: tuple[str, ...]
    counters: dict[str, int]
    last_steps: tuple[str, ...]
    command: str

    def describe(self) -> str:
        """Return the report of a violation, or one line for a run without one."""
        name = f"seed {self.seed}" if self.seed >= 0 else "plan"
        if not self.violations:
            return f"{name}: no violation, {counted(self.counters['deliveries'], 'delivery')}"
        lines = [f"{name}: {violation}" for violation in self.violations]
        if self.last_steps:
            lines += ["last steps:", *(f"  {line}" for line in self.last_steps)]
        return "\n".join([*lines, f"repeat with: {self.command}"])


def total(reports: Iterable[SeedReport]) -> dict[str, int]:
    """Return the ledger of many seeds: the sum of every counter."""
    ledger: dict[str, int] = {"seeds": 0, "violations": 0, "faults_landed": 0}
    for report in reports:
        ledger["seeds"] += 1
        ledger["violations"] += bool(report.violations)
        for name, value in report.counters.items():
            ledger[name] = ledger.get(name, 0) + value
            ledger["faults_landed"] += value if name.startswith("fault_") else 0
    return ledger


def play_and_judge(
    play: Callable[[], None], oracle: Oracle, strict: bool, forgiven: Collection[str]
) -> tuple[str, list[str]]:
    """Play a run to its end, or to its first error.

    Args:
        strict: the oracle stops the run at the first violation; otherwise violations are counted.
        forgiven: rules that the protocol may break, because it promises less.

    Returns:
        The rule of the first violation, "" for none, and the first violations in words.
    """
    rule, violations = "", []
    try:
        play()
    except InvariantViolated as violation:
        rule, violations = violation.rule, [f"{violation} ({_place_of(violation)})"]
    except Exception as error:
        # A core that fails is a finding like any other; the seed repeats the failure.
        rule = type(error).__name__
        violations = [f"{rule}: {error} ({_place_of(error)})"]
    broken = [each for each in oracle.violations if each not in forgiven]
    if not strict and broken:
        rule = rule or broken[0]
        violations += [each for each in oracle.first_violations if each.split(":")[0] in broken]
    return rule, violations


def _place_of(error: Exception) -> str:
    """Return file and line of the check that found a violation, or of the code that failed."""
    frames = traceback.extract_tb(error.__traceback__)
    place = [each for each in frames if each.filename != violations_module.__file__][-1]
    return f"{'/'.join(Path(place.filename).parts[-3:])}:{place.lineno}"
