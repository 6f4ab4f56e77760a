"""Comparison of duplicate detection: tolerated failures, and costs."""

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
from pubsubctl.console.console import Result, grouped
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
                            grouped(row.deliveries),
                            f"{100 * row.duplicates / row.deliveries:.1f}",
                            f"{100 * row.resent / row.deliveries:.1f}",
                            f"{row.wire_bytes / row.deliveries:.0f}",
                            grouped(row.disagreements),
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
            grouped(cost.publishers),
            grouped(cost.state_bytes),
            *(f"{cost.header_bytes[length]:.2f}" for length in lengths),
        )
        for cost in costs
    ]
    header = ("STATE OF", "δ", "PUBLISHERS", "BYTES/BROKER")
    return call.console.table(
        (*header, *(f"BYTES/PUBLICATION, RUNS OF {length}" for length in lengths)), lines
    )
