"""Studies: simulated experiments that print a table and draw no figure.

Duplicate detection and stalls are studies of [DFT11], routing is a study of [GES].
"""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from bench.papers.dft11.duplicate_detection import (
    CLASSES,
    VARIANTS,
    Cost,
    Outcome,
    Row,
    as_document,
    compare,
    measure_costs,
    number_of_runs,
    tabulate,
)
from bench.papers.dft11.stalls import Stalls, count_stalls, total_stalls
from bench.papers.ges.routing import TOPOLOGIES, RoutingCheck, RoutingError, check, measure
from bench.spec.spec import load_topology
from brokerd.text import counted
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import Invocation
from pubsubctl.errors import VerdictInvalid

SCHEDULES = 25


def compare_detection(call: Invocation, schedules: int, processes: int) -> Result:
    """Run the comparison; exit status 1 if a required property is violated."""
    outcomes: list[Outcome] = []
    runs = number_of_runs(schedules)
    with call.console.progress() as progress:
        progress.phase("comparing ways of telling duplicates")
        for outcome in compare(schedules, processes):
            outcomes.append(outcome)
            progress.update({"runs": f"{len(outcomes)}/{runs}"})
    rows, costs = tabulate(outcomes), measure_costs()
    wrong = [row for row in rows if row.must_hold and row.violated]
    return Result(
        document={
            "schema": "pubsubctl/dedupe-comparison/1",
            "schedules": schedules,
            **as_document(rows, costs),
        },
        text="\n\n".join((_violations(call, rows), _traffic(call, rows), _costs(call, costs))),
        because=tuple(
            VerdictInvalid(f"{row.variant}, {row.schedule_class}: {_cell(row)}") for row in wrong
        ),
    )


def _violations(call: Invocation, rows: list[Row]) -> str:
    """Return a table of runs with a violation, and the first violated property."""
    cells = {(row.variant, row.schedule_class): _cell(row) for row in rows}
    lines = [(variant, *(cells[variant, name] for name in CLASSES)) for variant in VARIANTS]
    return call.console.table(("VIOLATED IN", *CLASSES), lines)


def _cell(row: Row) -> str:
    kinds = ", ".join(f"{kind} {count}" for kind, count in row.kinds.items())
    return f"{row.violated} of {row.schedules}" + (f": {kinds}" if kinds else "")


def _traffic(call: Invocation, rows: list[Row]) -> str:
    """Return a table of delivery costs in runs without violation, for failing links."""
    lines = []
    for variant, chosen in VARIANTS.items():
        if chosen.bears[0]:
            for name in CLASSES:
                (row,) = [r for r in rows if (r.variant, r.schedule_class) == (variant, name)]
                if row.deliveries and row.violated == 0:
                    lines.append(
                        (
                            variant,
                            name,
                            f"{row.deliveries:,}",
                            f"{100 * row.duplicates / row.deliveries:.1f}",
                            f"{100 * row.resent / row.deliveries:.1f}",
                            f"{row.wire_bytes / row.deliveries:,.0f}",
                            f"{row.disagreements:,}",
                        )
                    )
    header = (
        "WITHOUT VIOLATION", "SCHEDULES", "DELIVERIES", "RECEIVED AGAIN/100", "SENT AGAIN/100",
        "BYTES/DELIVERY", "DISAGREEMENTS",
    )  # fmt: skip
    return call.console.table(header, lines)


def _costs(call: Invocation, costs: list[Cost]) -> str:
    lengths = list(costs[0].header_bytes)
    lines = [
        (
            cost.dedupe,
            cost.delta,
            f"{cost.publishers:,}",
            f"{cost.state_bytes:,}",
            *(f"{cost.header_bytes[length]:.2f}" for length in lengths),
        )
        for cost in costs
    ]
    header = ("STATE OF", "δ", "PUBLISHERS", "BYTES/BROKER")
    return call.console.table(
        (*header, *(f"BYTES/PUBLICATION, RUNS OF {length}" for length in lengths)), lines
    )


DELTAS = (1, 2, 3)


def simulate_stalls(call: Invocation, first: int, last: int) -> Result:
    """Run the same stories without and with relayed sessions, for each δ."""
    rows: list[dict[str, Any]] = []
    waiting: list[Stalls] = []
    with call.console.progress() as progress:
        progress.phase("counting publications that wait for links")
        for delta in DELTAS:
            for assist in ("off", "on"):
                stories = []
                for seed in range(first, last + 1):
                    stories.append(count_stalls(seed, delta, assist))
                    progress.update({"delta": delta, "assist": assist, "seed": seed})
                rows.append({"delta": delta, "assist": assist, **total_stalls(stories)})
                waiting += [story for story in stories if assist == "on" and story.is_stalled]
    header = ("δ", "ASSIST", "STORIES", "LINKS DOWN", "OWED", "NOT DELIVERED", "GATES CLOSED")
    cells = [
        (
            str(row["delta"]),
            row["assist"],
            f"{row['stories']:,}",
            f"{row['links']:,}",
            f"{row['owed']:,}",
            f"{row['missing']:,}",
            f"{row['closed']:,}",
        )
        for row in rows
    ]
    return Result(
        document={"schema": "pubsubctl/stalls/1", "seeds": [first, last], "rows": rows},
        text=call.console.table(header, cells),
        because=tuple(
            VerdictInvalid(f"δ = {story.delta}, seed {story.seed}: waits for {story.broken}")
            for story in waiting[:20]
        ),
    )


EVENTS = 500
"""Publications per match rate, which leave about a percent of uncertainty."""


def simulate_routing(call: Invocation, first: int, last: int) -> Result:
    """Measure transmissions in both reference hierarchies; check routes in random hierarchies."""
    with call.console.progress() as progress:
        progress.phase("routing in reference hierarchies")
        measured = [
            row for name in TOPOLOGIES for row in measure(load_topology(name), EVENTS, first)
        ]
        progress.phase("checking drawn hierarchies")
        checked: list[RoutingCheck] = []
        wrong: list[str] = []
        for seed in range(first, last + 1):
            progress.update({"seed": seed})
            try:
                checked.append(check(seed))
            except RoutingError as error:
                wrong.append(str(error))
    header = ("TOPOLOGY", "INTEREST OF", "MATCH %", "BROKERS REACHED", "TRANSMISSIONS")
    rows = [
        (
            row.topology,
            row.pattern,
            str(row.match_percent),
            f"{row.reached:.1f}",
            f"{row.transmissions:.1f}",
        )
        for row in measured
    ]
    return Result(
        document={
            "schema": "pubsubctl/routing/1",
            "seeds": [first, last],
            "traffic": [asdict(row) for row in measured],
            "hierarchies": [asdict(row) for row in checked],
            "wrong": wrong,
        },
        text="\n".join([call.console.table(header, rows), "", *_describe(checked, wrong)]),
        because=tuple(VerdictInvalid(each) for each in wrong[:20]),
    )


def _describe(checked: list[RoutingCheck], wrong: list[str]) -> Iterator[str]:
    brokers = sum(row.brokers for row in checked)
    events = sum(row.events for row in checked)
    yield (
        f"{counted(len(checked) + len(wrong), 'drawn hierarchy')}, {counted(brokers, 'broker')}, "
        f"{counted(events, 'publication')}, {len(wrong):,} wrong"
    )
