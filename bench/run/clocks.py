"""How far the clocks of hosts are apart, and how wrong that may be.

CLOCK_MONOTONIC of another host is read in many round trips. One that took `rtt` says that the
host's clock was read somewhere between asking and hearing: its offset is known to half of that.
The quickest trips say most; over time their line tells the drift. Where two hosts have the same
clock, because they are one machine, nothing is estimated: they agree by construction.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import trio

from bench.run.run_directory import RunDirectory, append_line
from brokerd.agent.client import AgentClient
from brokerd.agent.clock import clock_reading
from brokerd.errors import ControlError

CLOCK_FILE = "clock.jsonl"

ROUNDS = 30
PAUSE_S = 0.002
UNKNOWN_DRIFT_PPB = 100_000
"""Crystals of computers are better than that; allowed for while a drift cannot be told."""

_BINS = 8
_LEAST_FOR_DRIFT = 3


@dataclass(frozen=True)
class Exchange:
    """One round trip: our clock before and after, the host's in between."""

    sent_ns: int
    remote_ns: int
    received_ns: int

    @property
    def rtt_ns(self) -> int:
        return self.received_ns - self.sent_ns

    @property
    def middle_ns(self) -> int:
        return (self.sent_ns + self.received_ns) // 2

    @property
    def offset_ns(self) -> int:
        return self.remote_ns - self.middle_ns


@dataclass(frozen=True)
class Estimate:
    """How far a clock is ahead of another at one moment.

    Attributes:
        t_ns: the moment, by the other clock.
        offset_ns: this clock minus the other.
        drift_ppb: by how much it gains; 0 where the trips were too few or too short to tell.
        rtt_min_ns: of the quickest round trip.
        err_ns: the offset is not further off than that, as long as the way there and the way
            back are not of very different lengths only in the quickest trips.
        n: round trips.
    """

    t_ns: int
    offset_ns: int
    drift_ppb: float
    rtt_min_ns: int
    err_ns: int
    n: int


def estimate(exchanges: Sequence[Exchange]) -> Estimate:
    """What round trips say about a clock, at the middle of the time they took.

    The quickest trip gives the offset. The drift is the slope of a line through the quickest
    trip of each eighth of the time, where that is long enough to tell one at all. The error is
    half of the quickest trip, and what the clock may have drifted since.
    """
    assert exchanges, "no round trip, no estimate"
    quickest = min(exchanges, key=lambda trip: trip.rtt_ns)
    first_ns, last_ns = exchanges[0].middle_ns, exchanges[-1].middle_ns
    span_ns = last_ns - first_ns
    t_ns = first_ns + span_ns // 2
    drift_ppb, allowed_ppb = 0.0, float(UNKNOWN_DRIFT_PPB)
    best = _quickest_of_bins(exchanges, first_ns, span_ns)
    if len(best) >= _LEAST_FOR_DRIFT:
        slope = _slope(best)
        reach_ns = best[-1].middle_ns - best[0].middle_ns
        uncertain_ppb = (best[0].rtt_ns + best[-1].rtt_ns) / 2 / reach_ns * 1e9
        if uncertain_ppb < UNKNOWN_DRIFT_PPB:
            drift_ppb, allowed_ppb = slope * 1e9, uncertain_ppb
    since_ns = t_ns - quickest.middle_ns
    return Estimate(
        t_ns=t_ns,
        offset_ns=round(quickest.offset_ns + drift_ppb * since_ns / 1e9),
        drift_ppb=round(drift_ppb, 1),
        rtt_min_ns=quickest.rtt_ns,
        err_ns=-(-quickest.rtt_ns // 2) + round(allowed_ppb * abs(since_ns) / 1e9),
        n=len(exchanges),
    )


def between(host: Estimate, reference: Estimate) -> Estimate:
    """How far `host` is ahead of `reference`, where both were estimated against a third clock.

    The moment is the reference's estimate's, by the reference's own clock.
    """
    apart_ns = reference.t_ns - host.t_ns
    moved_ns = host.drift_ppb * apart_ns / 1e9
    return Estimate(
        t_ns=reference.t_ns + reference.offset_ns,
        offset_ns=round(host.offset_ns + moved_ns) - reference.offset_ns,
        drift_ppb=round(host.drift_ppb - reference.drift_ppb, 1),
        rtt_min_ns=max(host.rtt_min_ns, reference.rtt_min_ns),
        err_ns=host.err_ns
        + reference.err_ns
        + round(UNKNOWN_DRIFT_PPB * abs(apart_ns) / 1e9) * (not host.drift_ppb),
        n=min(host.n, reference.n),
    )


@dataclass(frozen=True)
class HostClock:
    """What a host said of its clock.

    Attributes:
        clock_id: equal where two hosts have one clock.
        estimate: against the clock of whoever asked.
    """

    host: str
    clock_id: str
    estimate: Estimate
    synchronised: bool | None
    wall_error_us: int | None


async def sample(
    agents: Mapping[str, AgentClient],
    *,
    rounds: int = ROUNDS,
    pause_s: float = PAUSE_S,
    now_ns: Callable[[], int] = time.monotonic_ns,
    sleep: Callable[[float], Awaitable[None]] = trio.sleep,
) -> list[HostClock]:
    """Ask every host for its clock, in turns, one at a time, so that none waits for another.

    Raises:
        ControlError: an agent does not answer.
    """
    exchanges: dict[str, list[Exchange]] = {host: [] for host in agents}
    answers: dict[str, Mapping[str, Any]] = {}
    for _ in range(rounds):
        for host, agent in agents.items():
            sent_ns = now_ns()
            answers[host] = answer = await agent.clock()
            exchanges[host].append(Exchange(sent_ns, answer["monotonic_ns"], now_ns()))
        await sleep(pause_s)
    return [
        HostClock(
            host,
            str(answer["clock_id"]),
            estimate(exchanges[host]),
            answer["synchronised"],
            answer["wall_error_us"],
        )
        for host, answer in answers.items()
    ]


def clock_rows(clocks: Iterable[HostClock], reference: str) -> list[dict[str, Any]]:
    """Rows of clock.jsonl: every host against one of them, whose clock the run's stamps are of."""
    by_host = {clock.host: clock for clock in clocks}
    own = by_host[reference]
    rows = []
    for clock in by_host.values():
        same = clock.clock_id == own.clock_id
        found = between(clock.estimate, own.estimate)
        if same:
            found = Estimate(found.t_ns, 0, 0.0, found.rtt_min_ns, 0, found.n)
        rows.append(
            {
                "host_id": clock.host,
                "ref_host": reference,
                "same_clock": same,
                "clock_id": clock.clock_id,
                **asdict(found),
            }
        )
    return rows


async def record_clocks(
    agents: Mapping[str, AgentClient],
    reference: str,
    directory: RunDirectory,
    when: Literal["before", "after"],
) -> dict[str, int]:
    """Write down how far the hosts' clocks are apart, into the clock.jsonl of a run.

    Returns:
        by host, how many nanoseconds its clock is ahead of this machine's.

    After the load a host may be gone, which is the experiment's business: then the rows from
    before have to do.

    Raises:
        ControlError: before the load, an agent does not answer.
    """
    try:
        clocks = await sample(agents)
    except ControlError as error:
        if when == "before":
            raise
        directory.log("clocks_not_sampled", reason=str(error))
        return {}
    rows = clock_rows(clocks, reference)
    for row in rows:
        append_line(directory.path / CLOCK_FILE, {"phase": when, **row})
    if when == "before":
        directory.manifest["clock"]["clock_ids"] = {row["host_id"]: row["clock_id"] for row in rows}
    return ahead_ns(clocks)


def ahead_ns(clocks: Iterable[HostClock], own_clock_id: str | None = None) -> dict[str, int]:
    """By host, how much its clock is ahead of ours; nothing where it is ours.

    Args:
        own_clock_id: of this machine's clock, which is asked for it by default.
    """
    by_clock = {own_clock_id or str(clock_reading()["clock_id"]): 0}
    found = {}
    for clock in clocks:
        # Hosts that have one clock agree, however well each was estimated.
        found[clock.host] = by_clock.setdefault(clock.clock_id, clock.estimate.offset_ns)
    return found


def _quickest_of_bins(exchanges: Sequence[Exchange], first_ns: int, span_ns: int) -> list[Exchange]:
    best: dict[int, Exchange] = {}
    for trip in exchanges:
        place = min(_BINS - 1, (trip.middle_ns - first_ns) * _BINS // max(1, span_ns))
        if place not in best or trip.rtt_ns < best[place].rtt_ns:
            best[place] = trip
    return [best[place] for place in sorted(best)]


def _slope(trips: Sequence[Exchange]) -> float:
    """Of the line through their offsets, by least squares."""
    t0, o0 = trips[0].middle_ns, trips[0].offset_ns
    points = [(trip.middle_ns - t0, trip.offset_ns - o0) for trip in trips]
    mean_t = sum(t for t, _ in points) / len(points)
    mean_o = sum(o for _, o in points) / len(points)
    return sum((t - mean_t) * (o - mean_o) for t, o in points) / sum(
        (t - mean_t) ** 2 for t, _ in points
    )
