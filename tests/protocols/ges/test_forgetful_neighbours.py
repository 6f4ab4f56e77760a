"""Stories of neighbours that forget a version of a profile while it awaits their confirmation."""

import pytest

from brokerd.protocols.ges.core import Ges
from tests.protocols.ges.start_stories import _started


@pytest.mark.parametrize("happens", ["it restarts", "it moves", "its session is back"])
def test_only_a_neighbour_that_kept_a_version_confirms_it_completely(happens: str) -> None:
    cluster = _started(("a", "b"))
    cluster.broker("b").absorb()
    found = cluster.subscribe("a", "true")
    cluster.run_for(2)
    core = cluster.broker("a").broker.core
    assert isinstance(core, Ges)
    units, peer = core.units, cluster.topology.brokers.index("b")
    [waiting] = units.confirmations.pending(0)
    assert waiting.is_complete
    assert peer in waiting.missing
    met = cluster.broker("b").broker.incarnation
    if happens == "it restarts":
        [*units.on_neighbour_up(peer, met + 1, core.now_ns)]
    elif happens == "its session is back":
        [*units.on_neighbour_up(peer, met, core.now_ns)]
    else:
        [*units.on_neighbour_moved(peer, units.neighbours.addresses[peer], core.now_ns)]
    assert waiting.is_complete == (happens == "its session is back")
    assert not found.started
