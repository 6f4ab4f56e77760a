"""Pairs of moves, and of parameters and moves, that plans of the swarm draw.

    python -m tests.helpers.drawn_pairs [PROTOCOL …] [--moves] [--parameters] [--first 201]

prints, per protocol, the pairs of moves that no plan has, and the pairs that no plan has at one
broker, without those of `NEVER`; with `--parameters` also the values of parameters that never meet
a move.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import combinations_with_replacement
from typing import Final

from brokerd.protocols.registry import DEFINITIONS
from brokerd.simulator.search.move import Move
from brokerd.simulator.search.moves import FaultInjection
from brokerd.simulator.search.plan import Plan
from brokerd.simulator.search.swarm import SwarmOptions, plan_of
from brokerd.simulator.world.client_mobility import home_of

Pair = tuple[str, str]

NEVER: Final = {
    ("depart", "role"): "a broker that has been a storage cannot leave, retired or not",
    ("lost", "role"): "a storage must return, so no plan loses one for ever",
}
"""Pairs that no plan can have at one broker, with the reason."""


def name_of(move: Move) -> str:
    """Return the name of a kind of moves: the verb, or the kind of a fault."""
    return move.kind if type(move) is FaultInjection else move.verb


def targets_of(move: Move) -> set[str]:
    """Return the brokers that a move names, and the brokers of its client."""
    if type(move) is FaultInjection:
        return {home_of(word) or word for word in move.on if not word.isdigit()}
    named = {getattr(move, key, "") for key in ("broker", "at", "to")}
    return {*named, home_of(getattr(move, "client", ""))} - {""}


def count_pairs(plans: Iterable[Plan]) -> tuple[dict[Pair, int], dict[Pair, int]]:
    """Return the number of plans by pair of moves, and by pair of moves at one broker.

    A kind is a pair with itself in plans with two such moves.
    """
    together: dict[Pair, int] = {}
    at_one: dict[Pair, int] = {}
    for plan in plans:
        here: dict[Pair, bool] = {}
        moves = sorted(
            {(name_of(move), frozenset(targets_of(move))) for move in plan.moves},
            key=lambda each: (each[0], sorted(each[1])),
        )
        counts: dict[str, int] = {}
        for move in plan.moves:
            counts[name_of(move)] = counts.get(name_of(move), 0) + 1
        for (a, on_a), (b, on_b) in combinations_with_replacement(moves, 2):
            if a == b and counts[a] < 2:
                continue
            here[a, b] = here.get((a, b), False) or bool(on_a & on_b)
        for pair, is_one in here.items():
            together[pair] = together.get(pair, 0) + 1
            at_one[pair] = at_one.get(pair, 0) + is_one
    return together, at_one


def count_parameter_pairs(plans: Iterable[Plan]) -> dict[Pair, int]:
    """Return the number of plans by parameter with its value, and move."""
    found: dict[Pair, int] = {}
    for plan in plans:
        kinds = sorted({name_of(move) for move in plan.moves})
        for name, value in asdict(plan.parameters).items():
            for kind in kinds:
                pair = f"{name}={value}", kind
                found[pair] = found.get(pair, 0) + 1
    return found


def describe_pairs(plans: Sequence[Plan]) -> Iterator[str]:
    """Yield lines about the pairs that plans lack."""
    together, at_one = count_pairs(plans)
    kinds = sorted({kind for pair in together for kind in pair})
    pairs = [*combinations_with_replacement(kinds, 2)]
    absent = [pair for pair in pairs if pair not in together]
    apart = [pair for pair in pairs if pair in together and not at_one[pair] and pair not in NEVER]
    yield f"{len(plans)} plans, {len(kinds)} kinds of moves, {len(pairs)} pairs"
    yield f"in no plan: {_join(absent)}"
    yield f"never at one broker: {_join(apart)}"


def describe_parameters(plans: Sequence[Plan]) -> Iterator[str]:
    """Yield a line per value of a parameter that never meets some moves."""
    found = count_parameter_pairs(plans)
    kinds = sorted({kind for _, kind in found})
    for name in sorted({name for name, _ in found}):
        lacks = [kind for kind in kinds if (name, kind) not in found]
        if lacks:
            yield f"{name} without: {', '.join(lacks)}"


def _join(pairs: Iterable[Pair]) -> str:
    return "; ".join(f"{a} × {b}" for a, b in pairs) or "none"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("protocols", nargs="*")
    parser.add_argument("--moves", action="store_true")
    parser.add_argument("--parameters", action="store_true")
    parser.add_argument("--first", type=int, default=201)
    parser.add_argument("--seeds", type=int, default=200)
    chosen = parser.parse_args()
    options = SwarmOptions(moves=chosen.moves)
    for protocol in chosen.protocols or DEFINITIONS:
        seeds = range(chosen.first, chosen.first + chosen.seeds)
        plans = [plan_of(seed, protocol, options) for seed in seeds]
        lines = [protocol, *describe_pairs(plans)]
        lines += describe_parameters(plans) if chosen.parameters else ()
        sys.stdout.writelines(f"{line}\n" for line in lines)


if __name__ == "__main__":
    main()
