"""Stories about the picture of the lab: hosts of processes and targets of faults."""

import csv
import io
import json
import re
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from results.figures.catalogue import draw
from results.figures.context import figure_data
from results.figures.run_figures import narrow_svg, read_drawn_numbers
from results.figures.topology import paint, topology_rows, topology_svg
from results.figures.topology_key import natural
from results.rules.fault_log import FaultSpan
from tests.helpers.runs import Scenario, write_demo_run

SECOND = 1_000_000_000
LINKS = [("p1", "b1"), ("b1", "s1"), ("b1", "s2")]
BROKERS = ["p1", "b1", "s1", "s2"]


END_S = 9


def span(verb: str, target: str, kind: str, from_s: float, to_s: float) -> FaultSpan:
    stretch = round(from_s * SECOND), round(to_s * SECOND)
    return FaultSpan(
        f"f-{verb}-{target}",
        verb,
        verb,
        target,
        kind,
        *stretch,
        (target,),
        to_s < END_S,  # type: ignore[arg-type]
    )


def test_each_target_shows_the_worst_that_happened_to_it_and_all_of_it_in_words() -> None:
    spans = [
        span("absorb", "b1", "held", 1, 2),
        span("kill", "b1", "down", 2, 4),
        span("restart", "b1", "back", 4, 5),
        span("kill", "s2", "down", 2, 9),
        span("cut", "s1-b1", "held", 3, 4),
        span("delay", "p1->b1", "limited", 5, 6),
    ]
    rows = topology_rows(BROKERS, LINKS, {}, {}, spans)
    fates = {(row["name"], row["other"]): (row["fate"], row["faults"]) for row in rows}
    assert fates == {
        ("p1", ""): ("untouched", ""),
        ("b1", ""): ("restarted", "absorb 1.0–2.0 s; kill 2.0–4.0 s"),
        ("s1", ""): ("untouched", ""),
        ("s2", ""): ("gone", "kill 2.0–9.0 s"),
        ("p1", "b1"): ("limited", "delay 5.0–6.0 s"),
        ("b1", "s1"): ("cut", "cut 3.0–4.0 s"),
        ("b1", "s2"): ("untouched", ""),
    }


def run_style() -> AbstractContextManager[None]:
    """Return the style of run figures.

    matplotlib is imported on demand, because every worker imports this file.
    """
    from results.figures import style

    return style.run_style()


def texts(width: str, hosts: dict[str, str], domains: dict[str, str]) -> list[str]:
    about = {"topology": "t", "hosts": len({*hosts.values()}), "root": "p1", "elsewhere": []}
    data = figure_data("run.topology", about, topology_rows(BROKERS, LINKS, hosts, domains))
    with run_style():
        figure = paint(data, width)  # type: ignore[arg-type]
    (axes,) = figure.axes
    return [text.get_text() for text in [*axes.texts, *figure.texts]]


def test_a_disc_shows_the_number_of_its_host_in_the_key() -> None:
    hosts = dict(zip(BROKERS, ["n10", "n2", "n2", "n1"], strict=True))
    shown = texts("wide", hosts, {})
    assert [name for name in shown if name in BROKERS] == BROKERS
    assert [number for number in shown if number.isdecimal()] == ["3", "2", "2", "1"]
    assert {"1 n1", "2 n2", "3 n10"} <= {*shown}


def test_hosts_of_one_failure_domain_stand_behind_its_name() -> None:
    hosts = dict(zip(BROKERS, ["n1", "n2", "n3", "n3"], strict=True))
    shown = texts("narrow", hosts, {"n1": "rack-a", "n2": "rack-a", "n3": "rack-b"})
    key = [text for text in shown if text.startswith("rack") or " n" in text]
    assert key == ["rack-a", "1 n1", "2 n2", "rack-b", "3 n3"]


def test_names_are_sorted_in_natural_order() -> None:
    assert sorted(["n10", "n2", "a", "n1", "rack-b"], key=natural) == [
        *("a", "n1", "n2", "n10", "rack-b")
    ]


def test_a_run_is_drawn_without_spark_the_same_bytes_each_time(tmp_path: Path) -> None:
    run = write_demo_run(tmp_path, Scenario(measure_s=5.0, stall_s=1.0, kill_s=1.8, restart_s=3.0))
    first = {path.suffix: path.read_bytes() for path in draw("run.topology", None, run)}
    second = {path.suffix: path.read_bytes() for path in draw("run.topology", None, run)}
    assert first == second
    assert {*first} == {".svg", ".png", ".csv", ".json"}
    rows = [*csv.DictReader(io.StringIO(first[".csv"].decode()))]
    touched = {
        row["name"] for row in rows if row["kind"] == "broker" and row["fate"] != "untouched"
    }
    assert touched == {"b1"}
    words = json.loads(first[".json"])
    assert words["metrics"]["brokers_touched"]["value"] == 1.0
    assert narrow_svg("run.topology", run) == narrow_svg("run.topology", run)


@pytest.mark.parametrize("leaves", [1, 24, 25, 300])
def test_trees_of_any_size_are_drawn(leaves: int) -> None:
    brokers = ["r", *(f"x{n}" for n in range(leaves))]
    svg = topology_svg("t", brokers, [("r", name) for name in brokers[1:]], {}, {})
    assert svg.startswith("<?xml")
    assert len(re.findall(r'<g id="line2d_', svg)) >= 2 * leaves


def test_the_picture_of_a_very_large_tree_stays_small() -> None:
    brokers = ["r", *(f"x{n}" for n in range(500))]
    assert len(topology_svg("t", brokers, [("r", n) for n in brokers[1:]], {}, {})) < 60_000


def test_a_ring_is_drawn_with_all_its_links() -> None:
    names = ["n1", "n2", "n3", "n4"]
    links = [*zip(names, [*names[1:], "n1"], strict=True)]
    about = {"topology": "ring", "hosts": 0, "root": "n1", "elsewhere": []}
    with run_style():
        figure = paint(figure_data("run.topology", about, topology_rows(names, links, {}, {})))
    (axes,) = figure.axes
    drawn = [line for line in axes.lines if len(line.get_xdata()) == 2]  # type: ignore[arg-type]
    assert len(drawn) == 4
    assert len({(x, y) for line in drawn for x, y in line.get_xydata()}) == 4  # type: ignore[union-attr]


def test_brokers_that_no_link_reaches_are_drawn_too() -> None:
    assert "<?xml" in topology_svg("t", BROKERS, LINKS[:1], {}, {})


def test_clients_are_shown_at_their_brokers_with_their_subscriptions(tmp_path: Path) -> None:
    run = write_demo_run(tmp_path, Scenario(measure_s=5.0, stall_s=1.0, kill_s=1.8, restart_s=3.0))
    draw("run.topology", None, run)
    with run_style():
        wide, narrow = (
            {
                text.get_text()
                for text in paint(read_drawn_numbers("run.topology", run), width).axes[0].texts
            }
            for width in ("wide", "narrow")
        )
    assert {"4 publishers, 25/s each", "1 subscription: symbol = 'SYMBOL007'"} <= wide
    assert "1 subscription: all" in wide
    assert {"4 publishers", "1 subscription"} <= narrow


@pytest.mark.parametrize("target", ["b1-s1", "s1-b1", "b1->s1", "s1->b1"])
def test_a_cut_link_is_marked_under_both_of_its_names(target: str) -> None:
    rows = topology_rows(BROKERS, LINKS, {}, {}, [span("cut", target, "held", 9, 10)])
    assert [(r["name"], r["other"], r["fate"]) for r in rows if r["fate"] != "untouched"] == [
        ("b1", "s1", "cut")
    ]


def test_a_lost_machine_is_seen_at_each_of_its_brokers() -> None:
    lost = replace(span("host-loss", "n1", "down", 5, 6), parts=("b1", "s1"))
    rows = topology_rows(BROKERS, LINKS, {}, {}, [lost])
    hit = {row["name"]: row["fate"] for row in rows if row["fate"] != "untouched"}
    assert hit == {"b1": "restarted", "s1": "restarted"}
