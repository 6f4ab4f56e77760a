"""Stories about comparing clocks over a network with arbitrary delays in either direction."""

import json
import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import trio

from bench.run.clocks import (
    Estimate,
    Exchange,
    HostClock,
    between,
    clock_rows,
    compute_lead_ns,
    estimate,
    record_clocks,
    sample,
)
from brokerd.errors import ControlError

MS, US = 1_000_000, 1_000
SECOND = 1_000_000_000


def trips(
    chance: random.Random,
    *,
    offset_ns: int,
    drift_ppb: float = 0.0,
    count: int = 200,
    every_ns: int = 5 * MS,
    way_ns: int = 200 * US,
) -> list[Exchange]:
    """Return round trips with random delays to a clock that is `offset_ns` ahead at time 0."""
    found = []
    for number in range(count):
        sent_ns = 10 * SECOND + number * every_ns
        there_ns = way_ns + round(chance.expovariate(1 / (300 * US)))
        back_ns = way_ns + round(chance.expovariate(1 / (300 * US)))
        read_ns = sent_ns + there_ns
        ahead_ns = offset_ns + round(drift_ppb * read_ns / 1e9)
        found.append(Exchange(sent_ns, read_ns + ahead_ns, read_ns + back_ns))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_the_true_offset_is_within_the_error_that_is_claimed(seed: int) -> None:
    chance = random.Random(seed)
    offset_ns = chance.randrange(-SECOND, SECOND)
    drift_ppb = chance.uniform(-50_000, 50_000)
    exchanges = trips(chance, offset_ns=offset_ns, drift_ppb=drift_ppb)
    found = estimate(exchanges)
    true_ns = offset_ns + drift_ppb * found.t_ns / 1e9
    assert abs(found.offset_ns - true_ns) <= found.err_ns, (seed, found)
    assert found.err_ns < 400 * US, (seed, found)
    century_ns = 3 * 10**18 + 1
    later = [replace(each, remote_ns=each.remote_ns + century_ns) for each in exchanges]
    assert estimate(later).offset_ns == found.offset_ns + century_ns, "a float has 53 bits"
    moved = between(estimate(later), found)
    assert moved.offset_ns == between(found, found).offset_ns + century_ns


@pytest.mark.parametrize("seed", range(10))
def test_the_drift_is_estimated_after_a_minute_only(seed: int) -> None:
    chance = random.Random(seed)
    short = estimate(trips(chance, offset_ns=7, drift_ppb=40_000, count=50, every_ns=MS))
    assert short.drift_ppb == 0
    long = estimate(trips(chance, offset_ns=7, drift_ppb=40_000, count=600, every_ns=100 * MS))
    assert long.drift_ppb == pytest.approx(40_000, abs=12_000), (seed, long)


def test_one_round_trip_bounds_the_error_by_half_its_duration() -> None:
    found = estimate([Exchange(1_000, 9_000, 3_000)])
    assert (found.offset_ns, found.err_ns, found.n) == (7_000, 1_000, 1)


@pytest.mark.parametrize("place", range(5))
def test_the_error_grows_with_the_time_to_the_quickest_trip_in_both_directions(place: int) -> None:
    def err_ns(quickest: int) -> int:
        rtts_ns = [200 if at == quickest else 900 for at in range(5)]
        sent = zip(range(0, 5 * SECOND, SECOND), rtts_ns, strict=True)
        return estimate([Exchange(at_ns, at_ns, at_ns + rtt_ns) for at_ns, rtt_ns in sent]).err_ns

    assert err_ns(place) == pytest.approx(err_ns(4 - place), rel=1e-3)
    assert err_ns(place) >= err_ns(2) == pytest.approx(100, abs=50)


def test_a_slow_round_trip_does_not_change_the_estimate() -> None:
    quick = Exchange(0, 500_100, 200)
    slow = Exchange(1_000, 9 * MS, 10 * MS)  # held up on the way back, or there: who knows
    assert estimate([quick, slow]).offset_ns == pytest.approx(500_000, abs=1_000)


def test_between_two_hosts_errors_add_up() -> None:
    host = Estimate(t_ns=1_000, offset_ns=500, drift_ppb=0.0, rtt_min_ns=80, err_ns=40, n=9)
    own = Estimate(t_ns=1_000, offset_ns=-200, drift_ppb=0.0, rtt_min_ns=60, err_ns=30, n=8)
    found = between(host, own)
    assert (found.offset_ns, found.err_ns, found.t_ns, found.n) == (700, 70, 800, 8)
    assert found.rtt_min_ns == between(own, host).rtt_min_ns == 80


def test_hosts_of_one_machine_agree_whatever_the_round_trips_say() -> None:
    noisy = Estimate(t_ns=5, offset_ns=123, drift_ppb=9.0, rtt_min_ns=60, err_ns=30, n=8)
    clocks = [
        HostClock("a", "boot1", noisy, True, 5),
        HostClock("b", "boot1", noisy, True, 5),
        HostClock("c", "boot2", noisy, True, 5),
    ]
    rows = {row["host_id"]: row for row in clock_rows(clocks, "a")}
    assert [rows[host]["same_clock"] for host in "abc"] == [True, True, False]
    assert (rows["b"]["offset_ns"], rows["b"]["err_ns"]) == (0, 0)
    assert rows["c"]["err_ns"] >= 60
    assert {row["ref_host"] for row in rows.values()} == {"a"}


class FarClock:
    """An agent with a clock that is ahead, a millisecond away in either direction."""

    def __init__(self, now: list[int], ahead_ns: int) -> None:
        self._now, self._ahead_ns = now, ahead_ns

    async def clock(self) -> dict[str, Any]:
        self._now[0] += MS
        told_ns = self._now[0] + self._ahead_ns
        self._now[0] += MS
        return {
            "monotonic_ns": told_ns,
            "wall_ns": told_ns,
            "clock_id": f"boot{self._ahead_ns}",
            "synchronised": None,
            "wall_error_us": None,
        }


def test_each_host_is_sampled_in_turn_for_every_round() -> None:
    now = [SECOND]

    async def sleep(seconds: float) -> None:
        now[0] += round(seconds * SECOND)

    async def work() -> list[HostClock]:
        agents: dict[str, Any] = {"a": FarClock(now, 5_000), "b": FarClock(now, -9 * SECOND)}
        clock: Callable[[], int] = lambda: now[0]  # noqa: E731
        return await sample(agents, rounds=7, now_ns=clock, sleep=sleep)

    a, b = trio.run(work)
    assert (a.host, a.estimate.n, a.estimate.rtt_min_ns) == ("a", 7, 2 * MS)
    assert (a.estimate.offset_ns, b.estimate.offset_ns) == (5_000, -9 * SECOND)


def test_schedules_go_by_the_clients_clock_wherever_they_are_carried_out() -> None:
    found = Estimate(t_ns=5, offset_ns=123, drift_ppb=0.0, rtt_min_ns=60, err_ns=30, n=8)
    clocks = [
        HostClock("far", "boot2", found, None, None),
        HostClock("beside it", "boot2", replace(found, offset_ns=130), None, None),
        HostClock("near", "boot1", replace(found, offset_ns=-3), None, None),
    ]
    assert compute_lead_ns(clocks, "boot1") == {"far": 123, "beside it": 123, "near": 0}
    assert compute_lead_ns(clocks, "boot2") == {"far": 0, "beside it": 0, "near": -3}


@pytest.mark.parametrize("quickest", range(3))
def test_the_drift_follows_from_the_quickest_trip_of_each_eighth(quickest: int) -> None:
    """Two of three trips in each eighth are slow, and late on the way back only."""
    exchanges = []
    for number in range(24):
        at_ns = number * SECOND
        back_ns = 1_000 if number % 3 == quickest else 900 * MS
        ahead_ns = at_ns * 40 // 1_000_000  # 40,000 ppb
        exchanges.append(Exchange(at_ns, at_ns + ahead_ns, at_ns + back_ns))
    assert estimate(exchanges).drift_ppb == pytest.approx(40_000, abs=100)


class Directory:
    """A run directory in memory, apart from files of lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest: dict[str, Any] = {"clock": {}}
        self.logged: list[str] = []

    def log(self, event: str, **_: object) -> None:
        self.logged.append(event)

    def phases(self) -> list[str]:
        file = self.path / "clock.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [json.loads(line)["phase"] for line in lines]


@pytest.mark.parametrize("when", ["before", "after"])
def test_clocks_that_cannot_be_read_end_a_run_before_its_load_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: Literal["before", "after"]
) -> None:
    async def refuse(_agents: object) -> list[HostClock]:
        raise ControlError("closed", "h1 does not answer")

    monkeypatch.setattr("bench.run.clocks.sample", refuse)
    directory: Any = Directory(tmp_path)
    with pytest.raises(ControlError) if when == "before" else nullcontext():
        assert trio.run(record_clocks, {}, "h1", directory, when) == {}
    assert directory.logged == ([] if when == "before" else ["clocks_not_sampled"])
    assert directory.phases() == []


def test_rows_of_clocks_are_recorded_twice_and_their_names_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that is started again has another clock after the load."""
    clock_id = "c1"

    async def read(_agents: object) -> list[HostClock]:
        found = Estimate(1_000, 500, 0.0, 80, 40, 9)
        return [HostClock("h1", clock_id, found, True, 1)]

    monkeypatch.setattr("bench.run.clocks.sample", read)
    directory: Any = Directory(tmp_path)
    trio.run(record_clocks, {}, "h1", directory, "before")
    clock_id = "c2"
    trio.run(record_clocks, {}, "h1", directory, "after")
    assert directory.phases() == ["before", "after"]
    assert directory.manifest == {"clock": {"clock_ids": {"h1": "c1"}}}
