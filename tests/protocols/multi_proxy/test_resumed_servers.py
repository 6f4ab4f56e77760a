"""The time until proxies reconnect to a server that was stopped and resumes."""

import pytest

from brokerd.protocols.interface import (
    DeadlineReached,
    OpenSession,
    SessionEstablished,
    SessionLost,
)
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.units import MILLISECOND_NS, SECOND_NS
from tests.helpers.proxy_stories import Story, sides

MUTANTS = bugs_of("multi_proxy")


def reached_after_ms(stall_s: float) -> int:
    """Return the milliseconds until all proxies have a session with a resumed server."""
    story = Story(sides(proxies=2, servers=1, edges=1))
    story.cluster.run_for(5)
    server = story.cluster.broker("v1")
    number = story.topology.number_of("v1")
    proxies = [story.cluster.broker(name).broker.core for name in ("x1", "x2")]
    server.freeze()
    story.cluster.run_for(stall_s)
    server.thaw()
    resumed_ns = story.cluster.schedule.now_ns
    while not all(number in proxy.status().ready for proxy in proxies):
        assert story.cluster.step(resumed_ns + 20 * SECOND_NS)
    return (story.cluster.schedule.now_ns - resumed_ns) // MILLISECOND_NS


@pytest.mark.parametrize("stall_s", [1, 1.5, 2, 2.6, 3.5, 4, 5, 6])
def test_a_server_is_reached_as_soon_as_it_continues(stall_s: float) -> None:
    assert reached_after_ms(stall_s) < 50


def test_a_server_that_waits_first_is_reached_later() -> None:
    with plant([MUTANTS["waits-although-its-peer-is-there"]]):
        assert reached_after_ms(3.5) > 400


def dials_of_closed_sessions() -> int:
    """Return the number of dials within ten seconds to a server that closes every session."""
    story = Story(sides(proxies=1, servers=1, edges=1))
    core = story.cluster.broker("x1").broker.core
    number, dials, session = story.topology.number_of("v1"), 0, 1_000
    now_ns = story.cluster.schedule.now_ns
    effects = core.handle(SessionLost(number, core._sessions[number], "closed_by_peer"), now_ns)
    end_ns = now_ns + 10 * SECOND_NS
    while now_ns < end_ns:
        now_ns += MILLISECOND_NS
        if any(type(each) is OpenSession and each.peer == number for each in effects):
            dials, session = dials + 1, session + 1
            core.handle(SessionEstablished(number, session, 1), now_ns)
            effects = core.handle(SessionLost(number, session, "closed_by_peer"), now_ns)
        elif (due_ns := core.next_deadline()) is not None and due_ns <= now_ns:
            effects = core.handle(DeadlineReached(), now_ns)
        else:
            effects = []
    return dials


def test_a_peer_that_closes_each_session_is_not_dialled_without_end() -> None:
    assert dials_of_closed_sessions() <= 20
    with plant([MUTANTS["dials-whatever-its-peer-closes"]]):
        assert dials_of_closed_sessions() > 1_000
