"""A small run of the cost measurement that checks the counts but not the times."""

import pytest

from tests.protocols.delta_tree.cost import SHAPES, measure


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [1, 10, 200])
def test_a_run_leaves_as_one_frame_per_hop_and_nothing_stays_behind(shape, size):
    cost = measure(shape, size, 400)
    hops = 2 if size > 1 and ("two homes" in shape or "100 subscriptions" in shape) else 1
    assert cost.frames_out == hops * 400 // size
    assert cost.publications == 400
    assert cost.left_in_queue == 0
