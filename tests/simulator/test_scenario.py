"""Tests of scenarios: the quiet state of a cluster, and invalid commands."""

import pytest

from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.simulator.scenario import ScenarioError, play_scenario
from brokerd.simulator.world.cluster import NotQuietError, SimulatedCluster
from tests.helpers.cluster import STEADY, chain

CHAIN = """protocol delta_tree delta=1
chain b0 b1 b2 b3

"""


def _blocks(commands: str) -> list[str]:
    return play_scenario(CHAIN + commands).rstrip("\n").split("\n\n")[1:]


def test_retries_out_of_phase_at_two_broken_links_do_not_disturb_the_quiet() -> None:
    """An attempt times out when the next one begins, so one attempt is always open."""
    *_, quiet = _blocks("cut b0 b1\nrun 2500ms\n\ncut b2 b3\nstabilize\n")
    told = quiet.splitlines()
    assert "b2 loses b3: silent" in told
    assert "b1 has a session with b3" in told, "the way around is found before it is quiet"
    cluster = SimulatedCluster(chain("b0", "b1", "b2", "b3"), network=STEADY).start()
    cluster.run_until_quiet()
    cluster.link("b0", "b1").cut()
    cluster.run_for(2.5)
    cluster.link("b2", "b3").cut()
    began_ns = cluster.schedule.now_ns
    cluster.run_until_quiet(10)
    assert cluster.waits.describe_unsettled() == []
    assert cluster.schedule.now_ns > began_ns, "nobody has noticed anything yet"


def test_a_cluster_is_not_quiet_before_brokers_detect_unreachable_peers() -> None:
    """b0 tries to reach b2 past b1 until the attempt times out."""
    plain = DeltaTreeParameters(assist="off")
    cluster = SimulatedCluster(chain("b0", "b1", "b2"), network=STEADY, parameters=plain).start()
    cluster.run_until_quiet()
    for far in ("b1", "b2"):
        cluster.link("b0", far).blackhole()
    assert not cluster.is_quiet(), "nobody has noticed that nothing is heard of b1"
    cluster.run_for(1)
    assert cluster.waits.describe_unsettled() == ["b0 dials [2]"]
    cluster.run_until_quiet(3)
    assert cluster.broker("b0").status().missing == (1, 2)


def test_an_attempt_that_can_succeed_by_now_is_waited_for() -> None:
    cluster = SimulatedCluster(chain("b0", "b1"), network=STEADY).start()
    cluster.run_until_quiet()
    cluster.link("b0", "b1").cut()
    cluster.run_for(20)
    assert cluster.is_quiet()
    cluster.link("b0", "b1").heal()
    assert not cluster.is_quiet()
    cluster.run_until_quiet(10)
    assert cluster.broker("b0").status().ready == (1,)


def test_a_cluster_that_does_not_settle_raises_an_error_with_the_reason() -> None:
    cluster = SimulatedCluster(chain("b0", "b1"), network=STEADY).start()
    cluster.run_until_quiet()
    cluster.link("b0", "b1").delay(10**12)
    cluster.subscribe("b1")
    with pytest.raises(NotQuietError, match=r"not quiet after 5 s: .* messages are on their way"):
        cluster.run_until_quiet(5)


@pytest.mark.parametrize(
    "commands, said",
    [
        ("delay b0 b1 100s\npublish b0 a=1\nsubscribe b1 true\nstabilize", "not quiet after 60 s"),
        ("start b0", "'start b0': b0 runs already"),
        ("kill b0\nkill b0", "b0 does not run; start it first"),
        ("freeze b7", "no broker called 'b7'; did you mean"),
        ("unsubscribe c-b3", "no client called 'c-b3'"),
        ("subscribe b3 true\nunsubscribe c-b3 2", "c-b3 has no subscription 2"),
        ("subscribe b3 true\ndetach c-b3\nsubscribe b3 true", "c-b3 has left for good"),
        ("subscribe b3 true\nreceived c-b2", "no client called 'c-b2'; did you mean 'c-b3'?"),
        ("subscribe b3 true\npublish b3 as c-b3 a=1", "to subscribe, and not to publish"),
        ("subscribe b3 ==", "expected an attribute name"),
        ("publish b0 a", "'a' is no attribute; write name=value"),
        ("cut b0", "write cut a b"),
        ("heal b0 > b1", "write heal a b"),
        ("pass b0 > b1 often", "write pass a > b, or pass a > b x3"),
        ("pass b0 > b1", "nothing is held on its way from b0 to b1"),
        ("delay b0 b1", "a word is missing"),
        ("quietly", "a word is missing"),
        ("run soon", "'soon' is no duration; write 50ms or 2s"),
        ("stabilise", "unknown command 'stabilise'; did you mean 'stabilize'?"),
        ("partitions maybe", "told or untold"),
    ],
)
def test_an_invalid_command_is_an_error_of_the_scenario(commands: str, said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        play_scenario(CHAIN + commands)
    assert said in str(caught.value)
