"""The same seeds in two fresh interpreters that hash strings differently.

Whatever depends on the order of a set, on an address, on a clock or on what ran before shows as
another history.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import brokerd
from brokerd.simulator.swarm import SwarmOptions, run_seed

_HASH_SEEDS = ("1", "2")


def differing_seeds(first: int, last: int, protocol: str, row: str = "") -> list[int]:
    """Seeds from `first` to `last` whose histories differ between two interpreters.

    Raises:
        RuntimeError: an interpreter broke down; with what it said.
    """
    children = [
        subprocess.Popen(
            _command(first, last, protocol, row),
            env={
                **os.environ,
                "PYTHONHASHSEED": hash_seed,
                "PYTHONPATH": str(Path(brokerd.__file__).parents[1]),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for hash_seed in _HASH_SEEDS
    ]
    answers = []
    try:
        for child in children:
            said, complaint = child.communicate()
            if child.returncode:
                raise RuntimeError(f"seeds {first}..{last} of {protocol}: {complaint[-2_000:]}")
            answers.append(said.splitlines())
    finally:
        for child in children:
            child.kill()
            child.communicate()
    one, other = answers
    seeds = range(first, last + 1)
    if not len(one) == len(other) == len(seeds):
        raise RuntimeError(f"{len(one)} and {len(other)} answers for {len(seeds)} seeds")
    return [seed for seed, *lines in zip(seeds, one, other, strict=True) if lines[0] != lines[1]]


def _command(first: int, last: int, protocol: str, row: str) -> list[str]:
    arguments = [str(first), str(last), protocol, row]
    return [sys.executable, "-m", "brokerd.simulator.determinism", *arguments]


def main(arguments: Sequence[str]) -> None:
    """One line per seed: the digest of its history, and of everything that was counted."""
    first, last, protocol, row = arguments
    for seed in range(int(first), int(last) + 1):
        report = run_seed(seed, protocol, SwarmOptions(campaign=row))
        counted = json.dumps([report.counters, report.violations]).encode()
        counted_digest = hashlib.blake2b(counted, digest_size=8).hexdigest()
        sys.stdout.write(f"{seed} {report.digest} {counted_digest}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
