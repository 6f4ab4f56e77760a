"""Tests of the judges with a swapped comparison, `min` or `max`.

The suite runs a sample; `python -m tests.helpers.swapped_comparisons` tries all of them.
"""

import subprocess
import sys
from random import Random

from tests.helpers.swapped_comparisons import EQUIVALENT, MODULES, REPOSITORY, swaps

COINCIDING = ("results.reference.risk", "results.reference.withholding", "results.rules.risks")
"""Modules whose swaps the histories with coinciding ends detect without further tests."""
SAMPLE = 4
SEED = 7

PROGRAM = """
import sys
from tests.helpers.swapped_comparisons import survivors, swaps
chosen = [swaps(module)[int(place)] for module, place in zip(sys.argv[1::2], sys.argv[2::2])]
print("\\n".join(survivors(chosen, ("coinciding_ends",))))
"""


def test_each_of_a_sample_is_seen_by_coinciding_ends() -> None:
    """The test runs in a new process that has imported no judge."""
    possible = [swap for module in COINCIDING for swap in swaps(module) if not swap.is_equivalent]
    chosen = Random(SEED).sample(possible, SAMPLE)
    arguments = [str(each) for swap in chosen for each in (swap.module, swap.place)]
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stdout.strip()) == (0, ""), found.stderr


def test_each_equivalent_swap_is_still_there() -> None:
    said = {swap.source()[2] for module in MODULES for swap in swaps(module)}
    assert EQUIVALENT.keys() <= said
