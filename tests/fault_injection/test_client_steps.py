"""Tests of schedule steps on clients of the load: reading, checks, draws and plans."""

from typing import Any

import pytest

from brokerd.units import SECOND_NS
from fault_injection.schedule.client_lint import check_clients
from fault_injection.schedule.lint import lint
from fault_injection.schedule.plan import draw_targets, expand
from fault_injection.schedule.targets import Clients, Target, read_target
from tests.fault_injection.test_schedule import TOPOLOGY, problems, read, step

CLIENTS: Clients = {
    "p1-pub-1": "publisher",
    "s1-sub-1": "subscriber",
    "s2-sub-1": "subscriber",
    "s3-sub-7": "own-process subscriber",
}


def found(text: str, **more: Any) -> list[str]:
    return problems(text, clients=CLIENTS, client_linger_ns=60 * SECOND_NS, **more)


def away(**keys: Any) -> str:
    return step(**{
        "id": "a", "at": "1s", "do": "client-disconnect", "on": "s1-sub-1",
        "for_": "5s", **keys,
    })  # fmt: skip


def slow(**keys: Any) -> str:
    return away(**{"id": "w", "do": "client-slow", "for_": "2s", **keys})


def roam(**keys: Any) -> str:
    values = {"id": "r", "at": "30s", "do": "client-roam", "on": "s1-sub-1", "to": "s3"}
    return step(**{**values, **keys})


def crash(**keys: Any) -> str:
    return away(**{"id": "c", "do": "client-crash", "on": "s3-sub-7", **keys})


def test_a_publisher_roams_only_with_a_constant_source() -> None:
    """With another source, publications would not be distinguishable."""
    text = roam(on="p1-pub-1")
    (problem,) = check_clients(read(text), TOPOLOGY, CLIENTS, None)
    where = ", and for publishers that are the same source at another broker"
    assert str(problem).endswith(f"is a publisher; client-roam is for subscribers{where}")
    assert not [*check_clients(read(text), TOPOLOGY, CLIENTS, None, publishers_roam=True)]
    for publishers_roam in (False, True):
        (problem,) = check_clients(
            read(roam(on="s3-sub-7")), TOPOLOGY, CLIENTS, None, publishers_roam=publishers_roam
        )
        assert str(problem).endswith("is an own-process subscriber; client-roam is for subscribers")


def test_valid_client_faults_pass_the_check() -> None:
    assert found(crash() + crash(id="d", at="30s", down="1s")) == []
    assert found(away() + slow(on="s2-sub-1") + roam()) == []
    assert found(away(on="p1-pub-1")) == []


@pytest.mark.parametrize(
    "text, said",
    [
        (away(on="s1-sub-2"), "no client called 's1-sub-2'; did you mean 's1-sub-1'?"),
        (away(on="s1"), "no client called 's1'"),
        (away(on="b1-s1"), "no client called 'b1-s1'"),
        (slow(on="p1-pub-1"), "is a publisher; client-slow is for subscribers"),
        (roam(on="p1-pub-1"), "is a publisher; client-roam is for subscribers"),
        (roam(to="s9"), "no broker called 's9'; did you mean 's"),
        (crash(on="s1-sub-1"), "is a subscriber; client-crash is for own-process subscribers"),
        (slow(on="s3-sub-7"), "is an own-process subscriber; client-slow is for subscribers"),
        (away(on="s3-sub-7"), "is an own-process subscriber; client-disconnect is for clients"),
        (away(down="1s"), "client-disconnect takes none"),
        (away(do="disconnect"), "did you mean 'client-disconnect'?"),
        (away(on="b1->s1"), "client-disconnect is for clients of the load, as in b1-sub-1"),
        (away(to="s3"), "client-disconnect takes none; only client-roam"),
        (roam(for_="2s"), "client-roam takes none"),
        (step(at="1s", do="client-roam", on="s1-sub-1"), "needs to"),
        (step(at="1s", do="client-slow", on="s1-sub-1"), "needs a for"),
        (step(at="1s", do="client-slow", pick=2, for_="1s"), "name them"),
    ],
)
def test_an_impossible_client_fault_is_an_error_with_its_reason(text: str, said: str) -> None:
    (problem,) = found(text)
    assert "warning" not in problem
    assert said in problem


def test_an_absence_beyond_the_linger_of_the_broker_is_refused() -> None:
    assert found(away(for_="58s")) == []
    (problem,) = found(away(for_="20s..59s"))
    assert "disconnected for up to 59s" in problem
    assert "keeps the state of a client for 1min (client_linger_ns)" in problem
    schedule = read(away(for_="20s"))
    (one,) = lint(schedule, TOPOLOGY, clients=CLIENTS, client_linger_ns=10 * SECOND_NS)
    assert "for 10s (client_linger_ns)" in one.text


def test_a_subscriber_that_its_broker_may_put_out_is_warned_about() -> None:
    (problem,) = found(slow(for_="6s"))
    assert "warning" in problem
    assert "accepts nothing for up to 6s" in problem
    assert "have waited for during 5s (slow_after)" in problem
    assert found(slow(for_="5s")) == []


@pytest.mark.parametrize(
    "text, said",
    [
        (away() + slow(at="3s"), "step w: at = '3s': s1-sub-1 may still be under a; anchor"),
        (away() + slow(at="1s"), "step w: at = '1s': s1-sub-1 may still be under a; anchor"),
        (slow() + away(), "step a: at = '1s': s1-sub-1 may still be under w; anchor"),
        (away() + roam(at="7s"), "anchor the step at a.recovered"),
        (away() + slow(at=None, after="a.observed"), "step w: after = 'a.observed': s1-sub-1 may"),
        (away() + roam(at="8s"), None),
        (away() + slow(at=None, after="a.recovered"), None),
        (away() + slow(at="3s", on="s2-sub-1"), None),
        (roam() + away(at="31s"), "anchor the step at r.observed"),
        (roam() + away(at=None, after="r.observed"), None),
        (roam() + away(at="50s"), None),
        (slow() + away(at="3s"), None),
        (away(at="10s") + slow(at="9s"), "w"),
    ],
)
def test_a_client_is_under_one_fault_at_a_time(text: str, said: str | None) -> None:
    text = "\n".join(line for line in text.splitlines() if not line.endswith("= None"))
    seen = found(text)
    if said is None:
        assert seen == []
    else:
        (problem,) = seen
        assert "s1-sub-1 may still be under" in problem
        assert said in problem


def test_a_roam_while_something_fails_is_warned_about() -> None:
    cut = step(id="c", at="25s", do="cut", on="b1-s1", for_="10s")
    (problem,) = found(cut + roam())
    assert "warning" in problem
    assert "c may be in force while s1-sub-1 moves" in problem
    assert found(cut.replace("25s", "5s") + roam()) == []
    after = step(id="c", after="r.observed", do="cut", on="b1-s1", for_="10s")
    assert found(roam() + after) == []
    kill = step(id="k", at="1s", do="kill", on="b1")
    start = step(id="s", at="5s", do="restart", on="b1")
    (unsure,) = found(kill + start + roam())
    assert "k may be in force" in unsure
    settled = '\n[[step]]\nid = "r"\nafter = "s.recovered"\ndo = "client-roam"\non = "s1-sub-1"\n'
    assert found(kill + start + settled + 'to = "s3"') == []


def test_a_downtime_longer_than_the_client_linger_is_a_warning() -> None:
    (problem,) = found(crash(down="2min"))
    assert "warning" in problem
    assert "a broker keeps the state of a client for 1min (client_linger_ns)" in problem


def test_the_check_allows_time_for_the_recovery_of_a_killed_process() -> None:
    (problem,) = found(crash() + crash(id="d", at="7s"))
    assert "may still be under c" in problem


def test_clients_count_as_no_failure_of_a_broker() -> None:
    cut = step(id="c", at="1s", do="cut", on="b1-s1", for_="10s")
    assert found(cut + away() + slow(on="s2-sub-1")) == []


def test_an_unchecked_client_name_is_a_warning_without_a_workload() -> None:
    (problem,) = problems(away(on="whoever"))
    assert "warning" in problem
    assert "seen only with a workload" in problem


def test_clients_may_be_drawn_from_names() -> None:
    pick = {"count": 1, "from": ["s1-sub-1", "s2-sub-1"]}
    text = step(id="a", at="1s", do="client-disconnect", pick=pick, for_="1s")
    drawn = draw_targets(read(text), TOPOLOGY, 3)
    assert drawn.steps[0].on in CLIENTS
    assert drawn == draw_targets(read(text), TOPOLOGY, 3)


def test_a_planned_client_fault_names_its_downtime_or_its_target_broker() -> None:
    (planned,) = expand(read(crash(down="1500ms")))
    assert planned.parameters == {"down_ms": 1500}
    (planned,) = expand(read(roam()))
    assert planned.parameters == {"to": "s3"}
    assert str(planned) == "r: at 30s: client-roam s1-sub-1 (to s3)"
    assert read_target("s1-sub-1", TOPOLOGY, "client-roam") == Target((), client="s1-sub-1")
    assert str(read_target("s1-sub-1", TOPOLOGY, "client-roam")) == "s1-sub-1"
