"""Tests of simulated brokers that start with an older copy of the disk, or an empty disk."""

from collections import Counter

import pytest

from brokerd.protocols.multi_proxy.checks.steps import MultiProxyChecks
from brokerd.protocols.parts.clients.restored_subscriptions import RestoredSubscriptions
from brokerd.protocols.registry import DEFINITIONS
from brokerd.sessions.state_marks import StateLedger
from brokerd.simulator.checks.protocol_checks import planning_of
from brokerd.simulator.search.client_moves import MemoryLoss
from brokerd.simulator.search.moves import FaultInjection
from brokerd.simulator.search.plan import read_plan
from brokerd.simulator.search.plan_run import PlanRun
from brokerd.simulator.search.planning import faults
from brokerd.simulator.search.planning.draw import draw_plan
from brokerd.simulator.world.client_mobility import home_of
from brokerd.simulator.world.faults import RESTORED
from brokerd.units import SECOND_NS

PLAN = """
simulation timed
protocol PROTOCOL
brokers e1 e2 x1 s1
overlay bipartite {"edges": ["e1", "e2"], "proxies": ["x1"], "servers": ["s1"]}
limits failed=1 links=1
core topic_attribute=kind
chance 1
publisher p0-e1
at 0.1 subscribe s1-e2 kind = 'a'
at 1 publish p0-e1 a,10,3 a,40,3
at 2 fault restored BROKER HOW then 6 7
at 4 publish p0-e1 a,10,3 a,40,3
at 8 publish p0-e1 a,10,3 a,40,3
heal 10
end 10
"""


def beside_another_server(text: str) -> str:
    """Return a plan with a second server, which may own topics as well."""
    return text.replace("x1 s1", "x1 s1 s2").replace('["s1"]', '["s1", "s2"]')


def plan_run(broker: str, how: str) -> PlanRun:
    text = PLAN.replace("PROTOCOL", "multi_proxy").replace("BROKER", broker)
    return PlanRun(read_plan(text.replace("HOW", how)))


@pytest.mark.parametrize(
    "broker, how, outcome",
    [("s1", "copy", "refused"), ("s1", "empty", "refused"), ("e2", "empty", "accepted")],
)
def test_a_proved_loss_is_accepted_or_refused(broker: str, how: str, outcome: str) -> None:
    """A server is refused while topics move; an access broker is not."""
    text = PLAN.replace("PROTOCOL", "multi_proxy").replace("BROKER", broker).replace("HOW", how)
    text = beside_another_server(text).replace("kind\nchance", "kind spread_topics=2\nchance")
    report = PlanRun(read_plan(text)).report(-1, "")
    assert not report.violations, report.describe()
    assert report.counters["fault_restored"] == 1
    assert report.counters[f"losses_{outcome}"] == 1
    assert report.counters["deliveries"] + report.counters["in_gaps_of_lost_state"] == 6


@pytest.mark.parametrize("ownership", ["arbiter", "rendezvous", "causal"])
def test_only_a_home_that_chooses_no_server_may_accept_a_loss(ownership: str) -> None:
    """With `causal`, only the access broker had on disk which server stored its publications."""
    text = PLAN.replace("PROTOCOL", "multi_proxy").replace("BROKER", "e1").replace("HOW", "empty")
    text = text.replace("kind\nchance", f"kind ownership={ownership}\nchance")
    report = PlanRun(read_plan(beside_another_server(text))).report(-1, "")
    assert not report.violations, report.describe()
    refused = ownership == "causal"
    assert report.counters["losses_refused"] == refused
    assert report.counters["losses_accepted"] == (not refused)


@pytest.mark.parametrize("broker", ["e1", "e2", "x1", "s1"])
@pytest.mark.parametrize("set_to", ["ownership=causal", "spread_topics=2"])
def test_beside_an_only_server_each_loss_is_accepted(broker: str, set_to: str) -> None:
    text = PLAN.replace("PROTOCOL", "multi_proxy").replace("BROKER", broker).replace("HOW", "empty")
    text = text.replace("kind\nchance", f"kind {set_to}\nchance")
    report = PlanRun(read_plan(text)).report(-1, "")
    assert not report.violations, report.describe()
    assert report.counters["fault_restored"] == 1
    assert not report.counters["losses_refused"]


@pytest.mark.parametrize("waits", ["", " get_wait_ns=0"], ids=["polls", "waits"])
@pytest.mark.parametrize("how", ["copy", "empty"])
@pytest.mark.parametrize("ownership", ["arbiter", "rendezvous"])
def test_a_server_with_an_accepted_loss_announces_what_nobody_has_fetched(
    ownership: str, how: str, waits: str
) -> None:
    """The only subscriber's broker is down while a server accepts publications and loses them."""
    text = PLAN.replace("PROTOCOL", "multi_proxy").replace("BROKER", "s1").replace("HOW", how)
    text = text.replace("kind\nchance", f"kind ownership={ownership}{waits}\nchance")
    text = text.replace("failed=1", "failed=2").replace(
        "at 4 pub", "at 2.4 fault kill e2 then 8\nat 4 pub"
    )
    report = PlanRun(read_plan(text)).report(-1, "")
    assert not report.violations, report.describe()
    assert report.counters["losses_accepted"] == 1
    assert report.counters["deliveries"] == 4
    assert report.counters["in_gaps_of_lost_state"] == 2


def accepted(text: str, losses: int = 1) -> Counter[str]:
    report = PlanRun(read_plan(text)).report(-1, "")
    assert not report.violations, report.describe()
    assert report.counters["losses_accepted"] == losses
    return Counter(report.counters)


TWO_SERVERS = """
simulation timed
protocol multi_proxy
brokers e1 e2 e3 x1 s1 s2
overlay bipartite {"edges": ["e1", "e2", "e3"], "proxies": ["x1"], "servers": ["s1", "s2"]}
limits failed=4 links=1
core topic_attribute=kind topics=8
chance 1
publisher p0-e1
publisher p1-e3
at 0.1 subscribe s1-e2 kind = 'a'
at 0.2 subscribe s2-e2 kind = 'b'
at 0.3 subscribe s3-e2 kind = 'c'
at 0.4 subscribe s4-e2 kind = 'd'
at 1 publish p0-e1 a,10,3 b,10,3 c,10,3 d,10,3
EVENTS
heal 10
end 10
"""
EACH = "a,40,3 b,40,3 c,40,3 d,40,3"


@pytest.mark.parametrize("server, other", [("s1", "s2"), ("s2", "s1")])
def test_an_arbiter_with_a_loss_asks_who_owns_its_topics(server: str, other: str) -> None:
    """A restarted broker sends requests while its proxy has no state and an owner is down."""
    events = (
        f"at 1.5 fault restored {server} empty then 2 4\nat 2.5 fault kill x1 then 3\n"
        f"at 2.2 fault kill {other} then 7\nat 2.3 fault kill e3 then 3\nat 5 publish p1-e3 {EACH}"
    )
    counters = accepted(TWO_SERVERS.replace("EVENTS", events))
    assert counters["deliveries"] == 8


def test_a_server_with_a_loss_keeps_what_a_returning_home_follows() -> None:
    """Publications after the loss, before the subscriber's broker returns, are delivered."""
    text = PLAN.replace("PROTOCOL", "multi_proxy").replace("BROKER", "s1").replace("HOW", "empty")
    text = text.replace("failed=1", "failed=2").replace("then 6 7", "then 3 3.5")
    text = text.replace("at 4 pub", "at 2.5 fault kill e2 then 8.5\nat 4 pub")
    assert accepted(text)["deliveries"] == 6


def test_a_topic_that_began_behind_a_loss_is_read_after_a_second_loss() -> None:
    text = PLAN.replace("PROTOCOL", "multi_proxy").replace("BROKER", "s1").replace("HOW", "empty")
    text = text.replace("failed=1", "failed=2").replace("then 6 7", "then 3 3.5")
    text = text.replace(
        "at 8 pub",
        "at 3.8 fault kill e2 then 7\nat 5 fault restored s1 copy then 5.5 6\n"
        "at 5.2 publish p0-e1 a,10,3\nat 8 pub",
    )
    counters = accepted(text, losses=2)
    assert counters["deliveries"] == 6
    assert counters["in_gaps_of_lost_state"] == 1


UNIT = """
simulation timed
protocol ges_reliable
brokers a b c
overlay hierarchy {"addresses": {"a": "0.0", "b": "0.1", "c": "0.2"},
 "links": [["a", "b"], ["b", "c"]], "storages": {"b": 1}}
limits failed=2 links=1
chance 1
publisher p0-a
at 0.1 subscribe s1-c kind = 'a'
at 1 publish p0-a a,10,3 a,40,3
EVENTS
at 9 publish p0-a a,10,3 a,40,3
heal 10
end 10
""".replace(",\n ", ", ")


TREE = """
simulation timed
protocol delta_tree delta=1
brokers a b c
links a-b b-c
limits failed=2 links=1
chance 6
publisher p0-a
at 0.1 subscribe s1-c kind = 'a'
at 1 publish p0-a a,10,3 a,40,3
at 2 fault restored c empty then 3 4
at 3.5 publish p0-a a,10,3
at 4.01 fault client_away s1-c then 8
at 4.02 fault kill c then 4.24
at 6.5 publish p0-a a,10,3
at 9 publish p0-a a,10,3 a,40,3
heal 10
end 10
"""


def test_a_lost_subscription_receives_its_gap_before_what_has_waited_for_its_client() -> None:
    """The broker of the subscription crashed before the client had the gap, and is back first."""
    counters = accepted(TREE)
    assert counters["in_gaps_of_lost_state"] == 1
    assert counters["deliveries"] == 5


@pytest.mark.parametrize("how", ["copy", "empty"])
def test_a_storage_with_an_accepted_loss_receives_subscriptions_again(how: str) -> None:
    events = f"at 2 fault restored b {how} then 3 4\nat 2.5 publish p0-a a,10,3"
    assert accepted(UNIT.replace("EVENTS", events))["deliveries"] == 5


@pytest.mark.parametrize("how, killed, restored", [("copy", 1.12, 1.122), ("empty", 1.38, 1.382)])
def test_a_storage_may_lose_a_subscription_before_its_start_is_announced(
    how: str, killed: float, restored: float
) -> None:
    """The answer of the storage is under way during the loss; the access broker states it again."""
    events = f"at 0.9 fault restored b {how} then {killed} {restored}\nat 3 publish p0-a a,10,3"
    text = UNIT.replace("EVENTS", events).replace("chance 1", f"chance {1 if how == 'copy' else 5}")
    slow = "network latency_highest_ns=300000000\nlimits"
    assert accepted(text.replace("limits", slow))["deliveries"] == 3


def test_a_subscriber_that_returns_after_a_loss_of_its_storage_receives_a_gap() -> None:
    """The storage lost the subscription, and no access broker had it."""
    events = (
        "at 2 fault client_away s1-c then 7\nat 2.5 fault restored b empty then 5 6\n"
        "at 4 publish p0-a a,10,3 a,40,3\nat 6.5 publish p0-a a,40,3"
    )
    counters = accepted(UNIT.replace("EVENTS", events))
    assert counters["deliveries"] == 4
    assert counters["in_gaps_of_lost_state"] == 3


def test_lost_positions_of_a_topic_are_publications_that_the_gap_names() -> None:
    """A subscription without a delivery restarts behind a gap from the first position."""
    text = PLAN.replace("PROTOCOL", "multi_proxy").replace("BROKER", "e2").replace("HOW", "empty")
    text = text.replace("at 1 publish p0-e1 a,10,3 a,40,3\n", "").replace("then 6", "then 3")
    report = PlanRun(read_plan(text)).report(-1, "")
    assert not report.violations, report.describe()
    assert report.counters["in_gaps_of_lost_state"] == 2
    assert report.counters["deliveries"] == 2


@pytest.mark.parametrize("how", ["copy", "empty"])
def test_a_broker_that_serves_on_without_a_proved_part_is_a_violation(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StateLedger, "loss", lambda self, peer, mark: None)
    report = plan_run("s1", how).report(-1, "")
    assert report.rule == "state lost", report.describe()


def test_a_loss_that_never_was_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StateLedger, "loss", lambda self, peer, mark: "it is older")
    text = PLAN.replace("PROTOCOL", "multi_proxy").replace("BROKER", "s1").replace("HOW", "copy")
    unchanged = text.replace("then 6 7", "then 2.1 7").replace("at 4", "at 8")
    report = PlanRun(read_plan(unchanged)).report(-1, "")
    assert report.rule == "state lost", report.describe()


def test_a_loss_without_a_witness_is_not_simulated() -> None:
    """No neighbour can prove a loss while the only proxy is down."""
    text = PLAN.replace("PROTOCOL", "multi_proxy").replace("BROKER", "s1").replace("HOW", "empty")
    away = text.replace("failed=1", "failed=2").replace("at 4", "at 5 fault kill x1 then 7\nat 4")
    report = PlanRun(read_plan(away)).report(-1, "")
    assert not report.violations, report.describe()
    assert report.counters["fault_restored"] == 1
    assert report.counters["losses_refused"] == report.counters["losses_accepted"] == 0


@pytest.mark.parametrize("protocol", sorted(DEFINITIONS))
def test_one_plan_in_eight_restores_a_disk(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(planning_of(protocol)), "draws_restored", True)
    plans = [draw_plan(seed, protocol) for seed in range(200)]
    drawn = [
        [move for move in plan.moves if type(move) is FaultInjection and move.kind == RESTORED]
        for plan in plans
    ]
    assert 15 < sum(map(bool, drawn)) < 35
    assert {moves[0].on[1] for moves in drawn if moves} == {"copy", "empty"}


OVERTAKEN = """
simulation adversarial
protocol multi_proxy
brokers b1 b2 b3 b4 b5
overlay bipartite {"proxies": ["b5", "b3"], "servers": ["b4", "b1"], "edges": ["b2"]}
limits failed=1 links=1
core ownership=rendezvous topic_attribute=kind topics=1 client_linger_ns=1000000000000000
chance 62043850045770 only
publisher p1-b2
at 1 take b3:dials:b4
at 2 take b4>b3
at 3 take b3>b4
at 4 take b3>b4
at 5 take b4>b3
at 6 take b4:log
at 7 take b4>b3
at 8 subscribe s4-b3 price = 10 or price = 60
at 8 take s4-b3:dials:b3
at 9 take b3>s4-b3
at 10 take s4-b3>b3
at 11 take b3>s4-b3
at 12 take s4-b3>b3
at 13 take b3:disk
at 14 take b3>b4
at 15 take b4:log
at 16 take b4>b3
at 17 take b3>b4
at 18 fault restored b4 copy
at 20 take b4:disk
at 21 take b4:log
at 22 take b4>b3
at 25 publish p1-b2 "1",90,3 "true",10,8 "true",60,0 true,40,8
heal 31
end 31
"""


def test_a_server_may_lose_a_subscription_before_its_start_is_announced() -> None:
    """The server requests the access broker's topics again, and retains all until the reply."""
    assert accepted(OVERTAKEN)["deliveries"] == 2


def test_a_client_that_has_left_since_the_copy_leaves_its_subscription() -> None:
    text = PLAN.replace("PROTOCOL", "multi_proxy").replace("BROKER", "e2").replace("HOW", "copy")
    text = text.replace("kind\nchance", "kind client_linger_ns=1000000000000000\nchance")
    accepted(text.replace("at 4 pub", "at 5 detach s1-e2\nat 4 pub"))


RESTORED_HOME = (
    PLAN.replace("PROTOCOL", "multi_proxy").replace("BROKER", "e2").replace("HOW", "copy")
).replace("kind\nchance", "kind client_linger_ns=1000000000000000 max_retain_ns=9000000\nchance")


def test_a_server_keeps_lost_records_for_a_restored_subscription() -> None:
    """Seed 73000119: the server has no end of the access broker's subscription to wait for."""
    accepted(RESTORED_HOME.replace("at 4 pub", "at 3 detach s1-e2\nat 4 pub"))


def test_a_restored_subscription_gives_way_to_a_later_one_of_its_number() -> None:
    """Since the copy, another process has requested another predicate under the number."""
    later = "at 3 unsubscribe s1-e2 1\nat 3.2 forget s1-e2 0\nat 3.2 subscribe s1-e2 price >= 20"
    counters = accepted(RESTORED_HOME.replace("at 4 pub", f"{later}\nat 4 pub"))
    assert counters["deliveries"] == 4


def test_a_client_without_memory_does_not_continue_a_restored_subscription() -> None:
    """The broker followed one of its two topics for another client, and not the other."""
    text = PLAN.replace("PROTOCOL", "multi_proxy").replace("BROKER", "e2").replace("HOW", "copy")
    text = text.replace("s1-e2 kind = 'a'", "s1-e2 true\nat 0.2 subscribe s2-e2 kind = 'b'")
    text = text.replace("kind\nchance", "kind client_linger_ns=1000000000000000\nchance")
    text = text.replace("failed=1", "failed=2").replace("a,40,3", "b,40,3")
    ended = "at 3 unsubscribe s1-e2 1\nat 3.2 fault client_away s2-e2 then 9"
    again = "at 7.5 forget s1-e2 0\nat 7.5 subscribe s1-e2 true"
    text = text.replace("at 4 pub", f"{ended}\nat 4 pub").replace("at 8 pub", f"{again}\nat 8 pub")
    assert accepted(text)["deliveries"] == 7


def test_a_client_that_states_another_subscription_ends_a_restored_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = RESTORED_HOME.replace("at 1 pub", "at 0.2 subscribe s1-e2 kind = 'b'\nat 1 pub")
    text = text.replace("at 4 pub", "at 3 unsubscribe s1-e2 1\nat 4 pub")
    accepted(text)
    monkeypatch.setattr(RestoredSubscriptions, "list_unstated", lambda *_: [])
    report = PlanRun(read_plan(text)).report(-1, "")
    assert "has 2 subscriptions of its clients, which requested 1" in report.describe()


def test_subscriptions_of_an_older_disk_excuse_their_publications_for_the_linger_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = PLAN.replace("PROTOCOL", "multi_proxy").replace("BROKER", "e2").replace("HOW", "empty")
    text = text.replace("kind\nchance", "kind client_linger_ns=1000000000\nchance")
    report = PlanRun(read_plan(text)).report(-1, "")
    assert not report.violations, report.describe()
    monkeypatch.setattr(MultiProxyChecks, "restored", lambda self, broker: broker.number == 0)
    report = PlanRun(read_plan(text)).report(-1, "")
    assert report.rule == "kept", report.describe()


MOVED = """
simulation timed
protocol gryphon
brokers b1 b2 b3
overlay cells {"bundles": [["b1", "b2"], ["b2", "b3"]], "members": {}}
limits failed=1 links=3
network jitter_ns=1
core client_linger_ns=LINGER
chance 103104430217200
publisher p0-b1
at 0 subscribe s2-b2 kind = 'a'
at 1 fault restored b2 copy
at 4.5 move s2-b2 b3
at 5 publish p0-b1 a,10,3
heal 5.3
end 6
"""


@pytest.mark.parametrize("linger_ns", [1_000_000_000_000_000, 1_000_000_000])
def test_a_client_that_has_moved_since_the_copy_leaves_its_subscription_for_the_linger(
    linger_ns: int,
) -> None:
    """Seed 66000040: the mover's old broker had an endless linger, and was restored."""
    report = PlanRun(read_plan(MOVED.replace("LINGER", str(linger_ns)))).report(-1, "")
    assert not report.violations, report.describe()
    assert report.counters["fault_restored"] == 1


@pytest.mark.parametrize("protocol", ["gryphon", "durable"])
def test_a_client_without_other_subscriptions_leaves_a_restored_one(protocol: str) -> None:
    """Seed 71003011: the client was connected, and its Connect is that of one without memory.

    In durable such a client may resume the subscription, which stays for the linger.
    """
    text = MOVED.replace("move s2-b2 b3", "unsubscribe s2-b2 1").replace("gryphon", protocol)
    report = PlanRun(read_plan(text.replace("LINGER", "1000000000000000"))).report(-1, "")
    assert not report.violations, report.describe()
    assert report.counters["fault_restored"] == 1


BUNDLE = """
brokers b1 b2
overlay cells {"bundles": [["b1", "b2"]], "members": {}}
"""
SIDES = """
brokers b1 b2 x1 s1
overlay bipartite {"edges": ["b1", "b2"], "proxies": ["x1"], "servers": ["s1"]}
"""

ONE_BY_ONE = """
simulation timed
protocol PROTOCOL
OVERLAY
limits failed=1 links=1
core client_linger_ns=1000000000000000
chance 1
publisher p0-b2
publisher p1-b1
at 0.1 subscribe s1-b1 true
at 0.2 subscribe s1-b1 price >= 70
at 2 fault restored b1 copy then 3 4
at 2.5 subscribe s2-b1 kind = 'e'
at 2.6 publish p1-b1 d,80,8
at 6 forget s1-b1 1
at 7 fault kill b1 then 8
at 9 publish p0-b2 d,90,8
at 10 subscribe s1-b1 price >= 70
at 11 publish p0-b2 d,90,8
heal 12
end 14
"""
"""Both subscriptions were requested after the loss; the next process requests one of them later."""


@pytest.mark.parametrize("protocol", ["gryphon", "durable", "multi_proxy"])
def test_a_client_without_memory_may_request_one_subscription_later(protocol: str) -> None:
    """The broker crashes in between, and the client states only the first one."""
    overlay = SIDES if protocol == "multi_proxy" else BUNDLE
    text = ONE_BY_ONE.replace("PROTOCOL", protocol).replace("OVERLAY", overlay.strip())
    report = PlanRun(read_plan(text)).report(-1, "")
    assert not report.violations, report.describe()
    assert (report.counters["losses_accepted"], report.counters["deliveries"]) == (1, 6)


def test_clients_of_a_restored_broker_are_away_and_the_broker_crashes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing else in a plan aims at the time between a restore and the return of a client."""
    monkeypatch.setattr(faults, "RESTORES", 1.0)
    found: dict[str, None] = {}
    for seed in range(1, 60):
        moves = draw_plan(seed, "gryphon").moves
        for restored in [each for each in moves if getattr(each, "kind", "") == RESTORED]:
            end = max(restored.when, *restored.stages, 0)
            for each in moves:
                if type(each) is MemoryLoss and home_of(each.client) == restored.on[0]:
                    found["forget"] = None
                if type(each) is not FaultInjection or not each.stages:
                    continue
                if each.kind == "client_away" and home_of(each.on[0]) == restored.on[0]:
                    is_before = each.when < end < each.stages[0]
                    found["away before" if is_before else "away after"] = None
                if each.kind == "kill" and each.on[0] == restored.on[0] and each.when > end:
                    found["crash"] = None
    assert {*found} == {"forget", "away before", "away after", "crash"}


def test_a_publisher_that_moved_from_a_restored_broker_expires() -> None:
    """Its older disk names the publisher, for which the broker starts no subscription."""
    plan = draw_plan(97_000_045, "delta_tree", moves=True)
    assert any(type(move) is FaultInjection and move.kind == RESTORED for move in plan.moves)
    assert plan.parameters.client_linger_ns == 3 * SECOND_NS
