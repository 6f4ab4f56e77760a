"""No forged message of a neighbour lets a core fail, at once or later.

`python -m tests.fuzz.forged` runs any number of seeds.
"""

import pytest

from tests.fuzz.forged import ForgedRun
from tests.helpers.every_protocol import PROTOCOLS


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_core_refuses_or_survives_whatever_its_neighbours_forge(protocol: str) -> None:
    run = ForgedRun(1, protocol, share=0.2, longest_s=5)
    run.run()
    assert not run.failure, run.failure
    assert run.forged > 5
