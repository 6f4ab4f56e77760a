"""Random programs of users receive every publication once, in any way to receive.

`python -m tests.helpers.user_programs PROTOCOL FIRST COUNT` runs more programs.
"""

from typing import Final

import pytest

from brokerd.protocols.registry import DEFINITIONS
from tests.helpers.user_programs import run_seed

PROGRAMS: Final = 2
"""The number of programs of each protocol; hundreds have run."""
PROTOCOLS: Final = [
    name for name, definition in DEFINITIONS.items() if definition.promises.exactly_once
]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_random_program_receives_each_publication_once(protocol: str) -> None:
    received = 0
    for seed in range(PROGRAMS):
        found, deliveries = run_seed(protocol, seed)
        assert not found, f"seed {seed}"
        received += deliveries
    assert received > PROGRAMS
