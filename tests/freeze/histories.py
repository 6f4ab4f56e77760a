"""Histories of the freeze: seeds of swarms and adversaries, and scenario files."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from brokerd.protocols.interface import Effect, Event
from brokerd.protocols.registry import DEFINITIONS
from brokerd.simulator.scenario import play_scenario
from brokerd.simulator.search.adversary import AdversaryOptions, run_adversary
from brokerd.simulator.search.swarm import SwarmOptions, run_seed
from brokerd.simulator.world.cluster import SimulatedCluster
from tests.freeze.canonical import canonical

SCENARIOS = Path(__file__).parents[1] / "protocols"
SWARM_SEEDS = range(1, 201)
ADVERSARY_SEEDS = range(1, 61)
MOVES_SEEDS = range(1, 41)

Watcher = Callable[[Any, Event, list[Effect]], None]

BASELINE = "best_effort"
"""A protocol that loses publications under faults, counted by its seeds."""


@dataclass(frozen=True)
class History:
    """A history: a kind, a protocol, and a seed or the name of a scenario file."""

    kind: str
    protocol: str
    which: str

    def __str__(self) -> str:
        return f"{self.kind} {self.protocol} {self.which}"


def histories() -> Iterator[History]:
    """Yield every history of the freeze, by kind and protocol."""
    for protocol in DEFINITIONS:
        for kind, seeds in (
            ("swarm", SWARM_SEEDS),
            ("adversary", ADVERSARY_SEEDS),
            ("moves", MOVES_SEEDS),
        ):
            yield from (History(kind, protocol, str(seed)) for seed in seeds)
        for path in sorted((SCENARIOS / protocol).glob("scenarios/*.txt")):
            yield History("scenario", protocol, path.stem)


def digest_of(history: History) -> str:
    """Return 16 hex digits over every step of every broker in a history.

    The broken rule follows, if any; a history that breaks a rule must not be recorded.
    """
    digest = hashlib.blake2b(digest_size=8)

    def add(broker: Any, event: Event, effects: list[Effect]) -> None:
        for piece in _step(broker, event, effects):
            digest.update(piece)

    broken = play(history, add)
    return f"{digest.hexdigest()} {broken}".strip()


def steps_of(history: History) -> list[tuple[str, str]]:
    """Return digest and words of every step of a history."""
    steps: list[tuple[str, str]] = []

    def add(broker: Any, event: Event, effects: list[Effect]) -> None:
        digest = hashlib.blake2b(b"".join(_step(broker, event, effects)), digest_size=8)
        words = " | ".join(f"{item!r:.400}" for item in (event, *effects))
        steps.append((digest.hexdigest(), f"broker {broker.number}: {words}"))

    play(history, add)
    return steps


def play(history: History, watcher: Watcher) -> str:
    """Run a history, with a watcher beside the checks of the simulator.

    Return the rule that the history breaks; "" if no rule is broken.
    """
    with _watched(watcher):
        if history.kind == "scenario":
            path = SCENARIOS / history.protocol / "scenarios" / f"{history.which}.txt"
            play_scenario(path.read_text("utf-8"))
            return ""
        if history.kind == "adversary":
            options = AdversaryOptions(protocol=history.protocol)
            report = run_adversary(int(history.which), options)
        else:
            choices = SwarmOptions(moves=history.kind == "moves", check_purity=False)
            report = run_seed(int(history.which), history.protocol, choices)
        return report.rule if report.violations and history.protocol != BASELINE else ""


def _step(broker: Any, event: Event, effects: list[Effect]) -> Iterator[bytes]:
    yield b"%d<" % broker.number
    yield canonical(event)
    for effect in effects:
        yield b">"
        yield canonical(effect)


@contextmanager
def _watched(watcher: Watcher) -> Iterator[None]:
    """Add a watcher to every simulated cluster that is made meanwhile."""
    begin = SimulatedCluster.__init__

    def begin_watched(self: SimulatedCluster, *arguments: Any, **options: Any) -> None:
        inner = options.get("watcher")

        def watch(broker: Any, event: Event, effects: list[Effect]) -> None:
            watcher(broker, event, effects)
            if inner is not None:
                inner(broker, event, effects)

        begin(self, *arguments, **{**options, "watcher": watch})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimulatedCluster, "__init__", begin_watched)
        yield
