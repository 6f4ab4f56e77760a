"""Omission of actions from a failing history, as long as the history breaks the same rule.

The search is deterministic, and bounded by a number of actions, not by a clock. The messages that a
close destroys are drawn again when an earlier action is left out, which costs a few candidates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from brokerd.simulator.checks.oracle import InvariantViolated
from brokerd.simulator.checks.protocol_checks import with_bugs
from brokerd.simulator.world.actions import ActedCluster, Action, Scene, in_words

MOST_ACTIONS = 1_000_000
"""Limit over all candidates: less than a minute."""


@dataclass(frozen=True, slots=True)
class ShortHistory:
    """A shrunk history.

    Attributes:
        scene: the state before the actions.
        actions: the remaining actions, each necessary as far as tried.
        violation: the violation, in words.
        tried: number of played candidates.
    """

    scene: Scene
    actions: tuple[Action, ...]
    violation: str
    tried: int

    def in_words(self) -> str:
        """Return the brokers and clients, the actions, and the violation, in words."""
        topology = self.scene.topology
        brokers = ", ".join(f"{number} = {name}" for number, name in enumerate(topology.brokers))
        links = ", ".join(f"{a}-{b}" for a, b in topology.links)
        publishers = ", ".join(f"{name} at {broker}" for name, broker in self.scene.publishers)
        lines = [
            f"{len(self.actions)} actions are left ({self.tried} histories tried)",
            f"brokers: {brokers}; links: {links}; publishers: {publishers}",
            *(f"  {in_words(action)}" for action in self.actions),
            self.violation,
        ]
        return "\n".join(lines)


_AT_THE_END = ("", "liveness", "incomplete")
"""Rules that only show after the healing of all faults."""


def failure_of(
    scene: Scene, actions: Sequence[Action], *, to_the_end: bool = True, trace: bool = False
) -> tuple[str, str, ActedCluster]:
    """Play actions, without impossible ones; then, if requested, heal, settle and judge.

    Returns:
        The rule that was broken first ("" for none), the violation in words, and the cluster.
    """
    with with_bugs(scene.mutants, scene.protocol):
        cluster = ActedCluster(scene, trace=trace)
        return *_played(cluster, actions, to_the_end), cluster


def _played(cluster: ActedCluster, actions: Sequence[Action], to_the_end: bool) -> tuple[str, str]:
    cluster.start()
    try:
        for action in actions:
            cluster.perform(action)
        if to_the_end:
            cluster.heal_all()
            cluster.settle(Random(0))
            cluster.oracle.judge_end()
    except InvariantViolated as violation:
        return violation.rule, str(violation)
    except Exception as error:
        # Any failure of a core is a finding; the caller compares its name.
        return type(error).__name__, str(error)
    return "", ""


def shrink_history(scene: Scene, actions: Sequence[Action], rule: str) -> ShortHistory:
    """Leave out as many actions as possible at once, then fewer, until no omission is possible."""
    budget = MOST_ACTIONS
    tried = 0
    kept = list(actions)
    to_the_end = rule in _AT_THE_END
    found, violation, cluster = failure_of(scene, kept, to_the_end=to_the_end)
    assert found == rule, f"played again, the actions break {found!r}, not {rule!r}"
    size = max(1, len(kept) // 2)
    while budget > 0:
        before = len(kept)
        place = len(kept)
        while place > 0 and budget > 0:
            candidate = [*kept[: max(0, place - size)], *kept[place:]]
            found, words, cluster = failure_of(scene, candidate, to_the_end=to_the_end)
            tried += 1
            budget -= len(cluster.actions)
            if found == rule:
                kept = candidate
                violation = words
            place -= size
        if size == 1 and len(kept) == before:
            break
        size = max(1, size // 2)
    return ShortHistory(scene, tuple(kept), violation, tried)
