"""Offsets between the clocks of hosts, with error bounds.

CLOCK_MONOTONIC of another host is read in many round trips. The host reads its clock between
request and answer, so a round trip of `rtt` bounds the offset to half of `rtt`. The quickest trips
are most exact; the line through their offsets is the drift. Hosts with the same clock, because they
are one machine, need no estimate: their offset is 0 by construction.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import trio

from bench.run.run_directory import RunDirectory, append_line
from brokerd.agent.client import AgentClient
from brokerd.agent.facts import clock_reading
from brokerd.errors import ControlError

CLOCK_FILE = "clock.jsonl"

ROUNDS = 30
PAUSE_S = 0.002
UNKNOWN_DRIFT_PPB = 100_000
"""Allowance for a drift that the trips do not determine; crystals of computers are better."""

_BINS = 8
_LEAST_FOR_DRIFT = 3


@dataclass(frozen=True)
class Exchange:
    """One round trip: the local clock before and after, the host's clock in between."""

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
    """The offset between two clocks at one moment.

    Attributes:
        t_ns: the moment, by the other clock.
        offset_ns: this clock minus the other clock.
        drift_ppb: gain of this clock; 0 if the trips were too few or too short for an estimate.
        rtt_min_ns: duration of the quickest round trip.
        err_ns: bound on the error of the offset, unless forward and return path differ much in
            length, and only in the quickest trips.
        n: number of round trips.
    """

    t_ns: int
    offset_ns: int
    drift_ppb: float
    rtt_min_ns: int
    err_ns: int
    n: int


def estimate(exchanges: Sequence[Exchange]) -> Estimate:
    """Return the estimate from round trips, at the middle of their time.

    The quickest trip gives the offset. The drift is the slope of a line through the quickest trip
    of each eighth of the time, if the time is long enough to determine a drift. The error is half
    of the quickest trip, plus the possible drift since that trip.
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
        offset_ns=quickest.offset_ns + round(drift_ppb * since_ns / 1e9),
        drift_ppb=round(drift_ppb, 1),
        rtt_min_ns=quickest.rtt_ns,
        err_ns=-(-quickest.rtt_ns // 2) + round(allowed_ppb * abs(since_ns) / 1e9),
        n=len(exchanges),
    )


def between(host: Estimate, reference: Estimate) -> Estimate:
    """Return the offset of `host` from `reference`; both were estimated against a third clock.

    The moment is the moment of the reference's estimate, by the reference's own clock.
    """
    apart_ns = reference.t_ns - host.t_ns
    moved_ns = host.drift_ppb * apart_ns / 1e9
    return Estimate(
        t_ns=reference.t_ns + reference.offset_ns,
        offset_ns=host.offset_ns + round(moved_ns) - reference.offset_ns,
        drift_ppb=round(host.drift_ppb - reference.drift_ppb, 1),
        rtt_min_ns=max(host.rtt_min_ns, reference.rtt_min_ns),
        err_ns=host.err_ns
        + reference.err_ns
        + round(UNKNOWN_DRIFT_PPB * abs(apart_ns) / 1e9) * (not host.drift_ppb),
        n=min(host.n, reference.n),
    )


@dataclass(frozen=True)
class HostClock:
    """The clock of a host, as its agent reports.

    Attributes:
        clock_id: equal for two hosts with the same clock.
        estimate: estimate against the clock of the requester.
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
    """Read the clocks of all hosts in turn, one at a time, so that no read waits for another.

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
    """Return rows of clock.jsonl: every host against the host with the clock of all stamps."""
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
    """Record the offsets of the hosts' clocks in the clock.jsonl of a run.

    After the load a host may be unreachable because of the experiment. The rows from before the
    load are then the only rows.

    Returns:
        Host → lead of the host's clock over this machine's clock, in ns.

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
    return compute_lead_ns(clocks)


def compute_lead_ns(clocks: Iterable[HostClock], own_clock_id: str | None = None) -> dict[str, int]:
    """Return the lead of each host's clock over the local clock; 0 for the same clock.

    Args:
        own_clock_id: id of this machine's clock, which is read by default.
    """
    by_clock = {own_clock_id or str(clock_reading()["clock_id"]): 0}
    found = {}
    for clock in clocks:
        # Hosts with the same clock have the same offset, whatever the estimates.
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
    """Return the slope of the least-squares line through the offsets."""
    t0, o0 = trips[0].middle_ns, trips[0].offset_ns
    points = [(trip.middle_ns - t0, trip.offset_ns - o0) for trip in trips]
    mean_t = sum(t for t, _ in points) / len(points)
    mean_o = sum(o for _, o in points) / len(points)
    return sum((t - mean_t) * (o - mean_o) for t, o in points) / sum(
        (t - mean_t) ** 2 for t, _ in points
    )
