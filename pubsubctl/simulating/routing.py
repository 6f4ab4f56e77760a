"""Costs and correctness of the routing of [GES], for the command line."""

from collections.abc import Iterator
from dataclasses import asdict

from bench.papers.ges.routing import TOPOLOGIES, Checked, RoutingWrong, check, measure
from bench.spec.spec import load_topology
from pubsubctl.console.console import Result, grouped
from pubsubctl.console.invocation import Invocation
from pubsubctl.errors import VerdictInvalid

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
        checked: list[Checked] = []
        wrong: list[str] = []
        for seed in range(first, last + 1):
            progress.update({"seed": seed})
            try:
                checked.append(check(seed))
            except RoutingWrong as error:
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
        text="\n".join([call.console.table(header, rows), "", *_in_words(checked, wrong)]),
        because=tuple(VerdictInvalid(each) for each in wrong[:20]),
    )


def _in_words(checked: list[Checked], wrong: list[str]) -> Iterator[str]:
    brokers = sum(row.brokers for row in checked)
    events = sum(row.events for row in checked)
    yield (
        f"{len(checked) + len(wrong)} drawn hierarchies, {grouped(brokers)} brokers, "
        f"{grouped(events)} publications, {len(wrong)} wrong"
    )
