"""Tests of derived counters, which equal the counted state when the cluster is quiet."""

from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.client.outgoing import Window
from brokerd.model.identity import SourceId
from brokerd.protocols.registry import DEFINITIONS
from brokerd.simulator.checks.protocol_checks import simulation_of
from brokerd.simulator.checks.recounts import check_recounts
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.search.swarm import SwarmOptions, run_seed
from tests.helpers.exchange import run_of

SEEDS = {
    "delta_tree": (1,),
    "durable": (1, 2),
    "ges": (1, 2),
    "ges_reliable": (1,),
    "gryphon": (1, 2, 3, 4, 11),
    "multi_proxy": (1, 2),
}
"""Seeds per protocol that reach all counters; seed 11 of gryphon acknowledges a part of a run."""


@pytest.mark.parametrize("protocol", SEEDS)
def test_counters_equal_a_recount_at_rest(protocol: str) -> None:
    for seed in SEEDS[protocol]:
        report = run_seed(seed, protocol, SwarmOptions(check_purity=False))
        assert not report.violations, f"seed {seed}"
        assert report.counters["counters_recounted"] > 10


def test_each_protocol_that_keeps_count_names_its_counters() -> None:
    assert {name for name in DEFINITIONS if simulation_of(name).recounts} == {*SEEDS}


def test_a_counter_that_is_wrong_is_named() -> None:
    window = Window()
    window.add(run_of(SourceId(0, 0, 1), 1, b"", b"", b""))
    core: Any = SimpleNamespace(window=window)
    holder = _Holder(core)
    assert check_recounts("p1", holder, ()) == 1
    window.publications += 1
    with pytest.raises(InvariantViolated, match=r"p1 counts 4 in Window.publications: 3"):
        check_recounts("p1", holder, ())


class _Holder:
    """A container in the role of a core."""

    def __init__(self, core: Any) -> None:
        self.window = core.window


_Holder.__module__ = "brokerd.made_up"
