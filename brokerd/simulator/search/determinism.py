"""Runs of the same seeds in two interpreters with different hashes of strings.

A dependency on the order of a set, on an address, on a clock or on earlier runs results in another
history.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import brokerd
from brokerd.simulator.search.seed_report import SeedReport
from brokerd.simulator.search.swarm import SwarmOptions, run_seed

_HASH_SEEDS = ("1", "2")


def find_differing_seeds(first: int, last: int, protocol: str, row: str = "") -> list[int]:
    """Return the seeds from `first` to `last` with different histories in two fresh interpreters.

    Raises:
        RuntimeError: an interpreter failed; with its output.
    """
    children = [_start(first, last, protocol, row, hash_seed) for hash_seed in _HASH_SEEDS]
    seeds = range(first, last + 1)
    one, other = _answers(children, seeds)
    if not len(one) == len(other) == len(seeds):
        raise RuntimeError(f"{len(one)} and {len(other)} answers for {len(seeds)} seeds")
    return [seed for seed, *lines in zip(seeds, one, other, strict=True) if lines[0] != lines[1]]


def _start(first: int, last: int, protocol: str, row: str, hash_seed: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
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


def _answers(children: Sequence[subprocess.Popen[str]], seeds: range) -> list[list[str]]:
    """Return the output lines of each interpreter, once all have ended."""
    answers = []
    try:
        for child in children:
            output, complaint = child.communicate()
            if child.returncode:
                raise RuntimeError(f"seeds {seeds[0]}..{seeds[-1]}: {complaint[-2_000:]}")
            answers.append(output.splitlines())
    finally:
        for child in children:
            child.kill()
            child.communicate()
    return answers


def _command(first: int, last: int, protocol: str, row: str) -> list[str]:
    arguments = [str(first), str(last), protocol, row]
    return [sys.executable, "-P", "-m", "brokerd.simulator.search.determinism", *arguments]


def line_of(report: SeedReport) -> str:
    """Return the digest of a seed's history, and of all its counters."""
    counted = json.dumps([report.counters, report.violations]).encode()
    counted_digest = hashlib.blake2b(counted, digest_size=8).hexdigest()
    return f"{report.seed} {report.digest} {counted_digest}"


def main(arguments: Sequence[str]) -> None:
    """Print one line per seed."""
    first, last, protocol, row = arguments
    for seed in range(int(first), int(last) + 1):
        sys.stdout.write(line_of(run_seed(seed, protocol, SwarmOptions(campaign=row))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
