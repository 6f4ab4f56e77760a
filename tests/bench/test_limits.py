"""Tests of the limit of a run's speed, from the first and last reports of the agents."""

from typing import Any

import pytest

from bench.run.limits import Limit, StampedStatus, UseProbe, limit_of

TOOK_S = 10.0


def status(
    processes: dict[str, tuple[float, float]], busy_s: float, pid: int = 7
) -> dict[str, Any]:
    """Return an agent's status: the time that every process ran and waited for a core."""
    rows = {
        name: {"pid": pid, "start_time": 1, "processor_s": 99.0, "busiest_thread_s": used}
        for name, used in processes.items()
    }
    return {"boot_id": "boot", "machine": {"cores": 2, "busy_s": busy_s}, "processes": rows}


def probe(busy_s: float, pid_at_end: int = 7, **used: tuple[float, float]) -> UseProbe:
    """Return ten seconds of one machine with the brokers c1 and c2 and two load generators."""
    found = UseProbe({"h1": {"c1": "c1", "c2": "c2"}}, "h1", ["load-pub", "load-sub"])
    names = [name.replace("_", "-") for name in used]
    at_rest = dict.fromkeys(names, (3.0, 1.0))
    found.begin({"h1": StampedStatus(100.0, status(at_rest, 50.0))})
    after = {
        name: (3.0 + ran_s, 1.0 + waited_s)
        for name, (ran_s, waited_s) in zip(names, used.values(), strict=True)
    }
    end = status(after, 50.0 + busy_s, pid_at_end)
    found.end({"h1": StampedStatus(100.0 + TOOK_S, end)})
    return found


def limit(found: UseProbe, *, is_rate_met: bool = False) -> Limit:
    return limit_of(found.uses(), found.machines(), is_rate_met=is_rate_met)


def test_a_process_at_a_full_core_is_the_limit() -> None:
    found = limit(
        probe(12.0, c1=(2.0, 0.0), c2=(1.0, 0.1), load_pub=(1.0, 0.0), load_sub=(9.8, 0.1))
    )
    assert (found.kind, found.text) == (
        "load generator",
        "load generator load-sub: 98% of a core",
    )
    assert found.is_of_load_generator
    found = limit(
        probe(12.0, c1=(2.0, 0.0), c2=(9.9, 0.0), load_pub=(1.0, 0.0), load_sub=(7.0, 0.1))
    )
    assert (found.text, found.is_of_load_generator) == ("broker c2: 99% of a core", False)


def test_a_process_waiting_for_a_core_is_the_limit_by_its_share() -> None:
    """The machine is busy with other work; one process needs more time than it receives."""
    found = limit(
        probe(20.0, c1=(2.5, 4.0), c2=(2.0, 3.0), load_pub=(1.0, 1.0), load_sub=(3.0, 6.9))
    )
    assert found.text == "load generator load-sub: 30% of a core, 97% of what it could have"


def test_a_load_generator_is_the_limit_before_an_equally_busy_broker() -> None:
    found = limit(
        probe(20.0, c1=(9.9, 0.0), c2=(1.0, 0.0), load_pub=(9.9, 0.0), load_sub=(1.0, 0.0))
    )
    assert found.text == "load generator load-pub: 99% of a core"


def test_a_full_machine_is_the_limit_without_a_busy_process() -> None:
    found = limit(
        probe(19.8, c1=(4.0, 3.0), c2=(4.0, 3.0), load_pub=(5.0, 2.0), load_sub=(5.0, 2.0))
    )
    assert (found.kind, found.text) == (
        "machine",
        "machine of h1: its 2 cores 99% busy, brokers 40%, load generators 50%",
    )


def test_the_window_is_the_limit_if_no_process_is_busy() -> None:
    found = limit(
        probe(4.0, c1=(1.0, 0.0), c2=(1.0, 0.0), load_pub=(1.0, 0.0), load_sub=(1.1, 0.0))
    )
    assert found.text == (
        "window of the publishers; the busiest is load generator load-sub: 11% of a core"
    )


def test_a_rate_that_was_met_is_the_limit_despite_busy_processes() -> None:
    found = limit(probe(20.0, c1=(9.9, 0.0), load_sub=(9.9, 0.0)), is_rate_met=True)
    assert (found.kind, found.text) == ("rate", "rate")


def test_a_process_that_was_started_again_is_left_out() -> None:
    assert probe(20.0, pid_at_end=8, c1=(9.9, 0.0), load_sub=(9.9, 0.0)).uses() == []


def test_a_restarted_process_counts_its_time_since_the_restart() -> None:
    """The restarted process had run 3 s before, but its successor had not."""
    (machine,) = probe(19.0, pid_at_end=8, c1=(-2.0, 0.0), load_sub=(1.0, 0.0)).machines()
    assert (machine.brokers, machine.load_generators) == (0.05, 0.2)


@pytest.mark.parametrize("processor_s", [1.0, None])
def test_without_accounts_of_waiting_the_whole_process_counts(processor_s: float | None) -> None:
    row = {"pid": 7, "start_time": 1, "busiest_thread_s": None}
    found = UseProbe({"h1": {"c1": "c1"}}, "h1", ())
    begun, ended = status({}, 0.0), status({}, 10.0)
    begun["processes"] = {"c1": {**row, "processor_s": processor_s}}
    ended["processes"] = {"c1": {**row, "processor_s": 10.5}}
    found.begin({"h1": StampedStatus(0.0, begun)})
    found.end({"h1": StampedStatus(TOOK_S, ended)})
    assert [(use.name, use.core) for use in found.uses()] == [("c1", 0.95)] * (processor_s == 1.0)


def two_hosts(
    *, restarts: str = "", vanishes: str = "", again: bool = False
) -> tuple[UseProbe, dict[str, float]]:
    """Return ten seconds of a host of broker c1, and of the clients' host with broker c2.

    All processes have the same names on both hosts, as far as agents report them.
    """
    found = UseProbe({"h1": {"p1": "c1"}, "h2": {"p2": "c2"}}, "h2", ["load-pub"])
    begun: dict[str, StampedStatus] = {}
    ended: dict[str, StampedStatus] = {}
    waited_s = {"p1": 2.0, "p2": 4.0, "load-pub": 12.0}
    for host in ("h1", "h2"):
        begun[host] = StampedStatus(100.0, status(dict.fromkeys(waited_s, (1.0, 1.0)), 50.0))
        after = {name: (2.0, 1.0 + passed_s) for name, passed_s in waited_s.items()}
        ended[host] = StampedStatus(
            100.0 + TOOK_S, status(after, 60.0, 8 if host == restarts else 7)
        )
    if vanishes:
        del ended[vanishes]
    for _ in range(1 + again):  # the second stretch replaces the first
        found.begin(begun)
        found.end(ended)
    return found, found.compute_wait_shares()


@pytest.mark.parametrize("again", [False, True])
def test_each_process_waits_for_its_share_of_the_stretch(again: bool) -> None:
    found, shares = two_hosts(again=again)
    assert found.is_complete
    assert shares == {"c1": 0.2, "c2": 0.4, "load-pub": 1.0}
    uses = [(use.kind, use.name) for use in found.uses()]
    assert uses == [("broker", "c1"), ("broker", "c2"), ("load generator", "load-pub")]


@pytest.mark.parametrize("host, left", [("h1", ["c2", "load-pub"]), ("h2", ["c1"])])
def test_a_process_that_did_not_run_throughout_has_no_share(host: str, left: list[str]) -> None:
    for found, shares in (two_hosts(restarts=host), two_hosts(vanishes=host)):
        assert sorted(shares) == left
        assert sorted(use.name for use in found.uses()) == left


@pytest.mark.parametrize(
    "ran_s, busy_s, kind",
    [(9.0, 19.0, "broker"), (8.99, 19.0, "machine"), (8.99, 18.99, "window"), (0.0, 0.0, "window")],
)
def test_shares_at_their_bounds_are_the_limit(ran_s: float, busy_s: float, kind: str) -> None:
    assert limit(probe(busy_s, c1=(ran_s, 0.0), load_sub=(0.0, 0.0))).kind == kind


def test_without_any_process_the_window_is_the_limit() -> None:
    assert limit_of([], [], is_rate_met=False) == Limit("window", "window of the publishers")
