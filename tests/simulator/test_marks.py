"""Tests of marks: the rules that a swarm has exercised, and the rules that a verdict requires."""

import re
from pathlib import Path

import pytest

import brokerd
from brokerd.model.identity import StreamId
from brokerd.overlay.tree import PrimaryTree
from brokerd.protocols.gryphon.messages import Doubt
from brokerd.protocols.interface import DeadlineReached, MessageReceived, OpenSession, Send
from brokerd.simulator.checks.marks import (
    Mark,
    MarkStep,
    MarkTable,
    Novelty,
    compute_coverage,
    describe_coverage,
    measure_novelty,
)
from brokerd.simulator.checks.protocol_checks import make_observer, marks_of
from brokerd.simulator.search.seed_report import SeedReport
from brokerd.simulator.search.swarm import run_seed
from brokerd.simulator.world.cluster import SimulatedCluster
from tests.helpers.cluster import STEADY, chain

DOCUMENT = Path(brokerd.__path__[0]) / "protocols" / "delta_tree" / "PROTOCOL.md"


def test_each_mark_stands_at_a_rule_of_the_document_and_each_named_there_exists() -> None:
    lines = re.findall(r"^ *Marks: ((?:.|\n {3})+?)\.$", DOCUMENT.read_text("utf-8"), re.M)
    named = re.findall(r"`([a-z-]+)`", " ".join(lines))
    assert sorted(named) == sorted(mark.name for mark in marks_of("delta_tree"))


def test_a_seed_counts_the_marks_that_it_reaches() -> None:
    report = run_seed(2, "delta_tree")
    assert report.counters["mark_publications-resent"] > 0
    assert report.counters["mark_leaf-joined"] == 0, "nobody joins in this seed"


def test_a_protocol_without_marks_counts_none() -> None:
    assert not marks_of("best_effort")
    assert make_observer("best_effort", PrimaryTree(chain("b1", "b2"))) is None
    assert not any(name.startswith("mark_") for name in run_seed(2, "best_effort").counters)


def test_a_row_of_a_mark_table_counts_its_mark_in_each_step_that_it_describes() -> None:
    arrived = Mark("arrived", "a request arrived", on=(Doubt,))
    answered = Mark("answered", "it was answered", on=(Doubt,), when=lambda step: bool(step.sent))
    table = MarkTable((arrived, answered, Mark("sent", "a request was sent", by=(Doubt,))))
    broker = SimulatedCluster(chain("b1", "b2")).start().broker("b1").broker
    doubt = Doubt(StreamId(1, 0, 0), 7)
    for event, effects in (
        (MessageReceived(1, 1, doubt), ()),
        (MessageReceived(1, 1, doubt), (Send(1, doubt), Send(1, doubt))),
        (DeadlineReached(), (Send(1, doubt),)),
        (DeadlineReached(), (OpenSession(1),)),
    ):
        table.step(MarkStep(broker, event, effects))
    assert table.counts == {"arrived": 2, "answered": 1, "sent": 2}


def test_a_mark_of_a_statistic_counts_each_rise() -> None:
    cluster = SimulatedCluster(chain("b1", "b2")).start()
    cluster.run_until_quiet()
    broker = cluster.broker("b1").broker
    table = MarkTable((Mark("received", "one arrived", counter="publications_received"),))
    for publications in (0, 2, 0, 1):
        for _ in range(publications):
            cluster.publish("b1", kind="a")
        cluster.run_until_quiet()
        table.count_statistics(broker)
    assert table.counts == {"received": 2}


def test_a_mark_with_too_few_seeds_is_reported_with_its_meaning() -> None:
    marks = (
        Mark("publications-resent", "publications were sent again", seeds=1),
        Mark("leaf-joined", "a leaf joined", seeds=2),
        Mark("leaf-left", "a leaf left"),
    )
    found = compute_coverage(marks, [run_seed(seed, "delta_tree") for seed in (2, 4)])
    assert [row.is_enough for row in found] == [True, False, True]
    assert describe_coverage(found) == (
        "1 of 3 marks reached\nmark leaf-joined in 0 seeds, 1 are required: a leaf joined"
    )


def _report(**marks: int) -> SeedReport:
    counters = {"deliveries": 9, **{f"mark_{name}": count for name, count in marks.items()}}
    return SeedReport(1, "delta_tree", "", "", (), counters, (), "")


def test_a_third_time_is_new_and_a_fourth_is_not() -> None:
    reports = [_report(joined=1), _report(joined=4), _report(joined=7, left=0), _report(joined=1)]
    assert measure_novelty(reports[:1]) == Novelty(seeds=1, pairs=1, single=1, late=1)
    assert measure_novelty(reports) == Novelty(seeds=4, pairs=2, single=0, late=0)
    assert measure_novelty([*reports, _report(left=2)]) == Novelty(5, 3, single=1, late=1)


def test_the_chance_of_a_new_pair_is_the_share_of_single_ones() -> None:
    alike = [_report(joined=1)] * 40
    assert measure_novelty(alike).chance == 0
    assert measure_novelty([*alike, _report(left=1), _report(left=2)]).chance == 2 / 42
    assert measure_novelty([_report(joined=1, left=1)]).chance == 1
    assert measure_novelty([]).chance == 1
    assert measure_novelty(alike).describe().endswith("a new pair with a chance of 0.0%")


def _counts_of(cluster: SimulatedCluster) -> dict[str, int]:
    assert cluster.checker.marks is not None
    return cluster.checker.marks.counts


@pytest.mark.parametrize("home, crossed", [("b2", 0), ("b1", 1)])
def test_a_notifier_is_marked_at_each_broker_with_changed_tags(home: str, crossed: int) -> None:
    """b4 is dead during a subscription; b3 detects the return and notifies home past b2."""
    cluster = SimulatedCluster(chain("b1", "b2", "b3", "b4"), network=STEADY).start()
    cluster.run_until_quiet()
    cluster.broker("b4").kill()
    cluster.run_for(3)
    cluster.subscribe(home)
    cluster.run_for(1)
    counts = _counts_of(cluster)
    assert (counts["island-tagged"], counts["gate-opened"]) == (crossed + 1, 0)
    cluster.broker("b4").start()
    cluster.run_until_quiet()
    assert (counts["notifier-changed-tags"], counts["gate-opened"]) == (crossed, 1)
    assert counts["recovered"] == 1
