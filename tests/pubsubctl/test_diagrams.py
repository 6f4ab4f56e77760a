"""Tests of space-time diagrams, and stories about `simulate draw`."""

import re
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from brokerd.protocols.interface import MessageReceived
from brokerd.simulator.scenario import cluster_after
from brokerd.simulator.search.plan import read_plan
from brokerd.simulator.search.plan_run import PlanRun
from brokerd.simulator.world.trace import with_all_steps
from pubsubctl.simulation.diagram import Diagram, diagram_of, write_page, write_svg
from tests.pubsubctl.conftest import Call

PLANS = Path("tests/simulator/plans").resolve()
SCENARIOS = Path("tests/protocols/delta_tree/scenarios").resolve()
LOSS = """\
protocol best_effort
chain b1 b2
subscribe b2 true
publish b1 kind=a
publish b1 kind=b
stabilize
cut b1 b2
publish b1 kind=c
heal b1 b2
run 5s
"""
HISTORY = """\
# final early: b1, (0, 0, 0): 2000863616334000000, and 2 lacks 2000863616334000000
# brokers: 0 = b1, 1 = b2, 2 = b3
world protocol=gryphon brokers=3 publications=2 subscriptions=1 faults=0 early=0
kinds crash fail cut suspect leave
mutants M04-done-with-the-first
do publish p1 0 1
do p1>0
do subscribe s1 2 0
do s1>2
do 2:disk
do 2>1
do 1:disk
do 1>0
do 0:disk
do 0:log
do 0>1
do 1>2
do 2:disk
"""
MANY = 1_000_000


def drawn(text: str, steps: int = MANY) -> tuple[Diagram, Counter[tuple[str, str]]]:
    """Return the diagram of a scenario, and its received messages by both ends."""
    with with_all_steps():
        cluster = cluster_after(text)
    assert cluster.trace is not None
    received: Counter[tuple[str, str]] = Counter()
    for step in cluster.trace.kept:
        if isinstance(step.event, MessageReceived):
            peer = step.event.peer
            name = peer if isinstance(peer, str) else cluster.topology.brokers[peer]
            received[name, step.place] += 1
    return diagram_of(cluster, "a story", (), steps), received


@pytest.mark.parametrize("file", ["02_paper_fig1.txt", "12_half_open.txt"])
def test_each_received_message_of_a_run_is_one_arrow(file: str) -> None:
    diagram, received = drawn((SCENARIOS / file).read_text())
    names = {name for pair in received for name in pair}
    brokers = {place for _, place in received}
    arrows = Counter(
        (each.start, each.end)
        for each in diagram.arrows
        if each.end_row >= 0 and each.end in brokers
    )
    assert arrows == received
    assert sum(received.values()) > 20
    assert not any(each.text.startswith("from ") for each in diagram.remarks)
    assert names <= {*diagram.lanes}


def test_no_arrow_ends_before_its_start() -> None:
    diagram, _ = drawn((SCENARIOS / "02_paper_fig1.txt").read_text())
    assert all(each.end_row >= each.start_row for each in diagram.arrows if each.end_row >= 0)
    assert diagram.times_ns == sorted(diagram.times_ns)


def test_a_message_on_a_cut_link_ends_in_a_cross() -> None:
    diagram, _ = drawn(LOSS)
    lost = [each for each in diagram.arrows if each.end_row < 0]
    assert [(each.start, each.end) for each in lost] == [("b1", "b2")]
    assert 'class="lost"' in write_svg(diagram)


def test_the_last_steps_leave_earlier_messages_out() -> None:
    whole, _ = drawn(LOSS)
    part, _ = drawn(LOSS, steps=4)
    assert 4 <= len(part.times_ns) < len(whole.times_ns)
    assert part.times_ns[-1] == whole.times_ns[-1]


def test_the_violation_of_a_plan_is_the_last_row() -> None:
    with with_all_steps():
        run = PlanRun(read_plan((PLANS / "M25.plan").read_text()))
        report = run.report(-1, "")
    diagram = diagram_of(run.cluster, "M25", report.violations, MANY)
    (violation,) = [each for each in diagram.remarks if each.is_violation]
    assert violation.text in report.violations
    assert violation.row == len(diagram.times_ns) - 1


def test_a_picture_is_well_formed_and_escapes_texts() -> None:
    diagram, _ = drawn(LOSS)
    diagram.title = "a < b & c"
    root = ElementTree.fromstring(write_svg(diagram))
    texts = [each.text for each in root.iter() if each.tag.endswith("}text")]
    assert {"b1", "b2"} <= {*texts}
    assert "<h1>a &lt; b &amp; c</h1>" in write_page(diagram)


@pytest.mark.parametrize("name", ["M25.plan", "relayed-outlives-leg.plan"])
def test_draw_writes_the_picture_of_a_plan(call: Call, name: str) -> None:
    answer = call("simulate", "draw", "--json", str(PLANS / name), "-o", "plan.html")
    assert answer.status == 0, answer.err
    assert answer.document["picture"] == "plan.html"
    assert answer.document["violations"]
    assert answer.document["violations"][0] in Path("plan.html").read_text().replace("&gt;", ">")


def test_draw_shows_the_history_of_an_exploration(call: Call) -> None:
    Path("last.history").write_text(HISTORY)
    answer = call("simulate", "draw", "--json", "last.history")
    assert answer.status == 0, answer.err
    picture = Path("last.svg").read_text()
    assert answer.document["violations"][0].startswith("final early")
    assert ">p1</text>" in picture
    assert not re.search(r'class="fault">\S+&gt;\S+<', picture), "a lane is no remark"


def test_a_picture_is_named_after_its_file(call: Call) -> None:
    Path("loss.txt").write_text(LOSS)
    answer = call("simulate", "draw", "loss.txt")
    assert (answer.status, answer.out) == (0, "loss.svg\n")
    ElementTree.parse("loss.svg")


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["nothing.plan"], "nothing.plan: no such file"),
        (["loss.txt", "-o", "loss.gif"], "--output loss.gif: write a name that ends in .svg"),
        (["wrong.txt"], "wrong.txt: "),
        (["loss.txt", "--steps", "0"], "--steps"),
    ],
)
def test_a_file_that_cannot_be_drawn_ends_with_status_2(
    call: Call, arguments: list[str], said: str
) -> None:
    Path("loss.txt").write_text(LOSS)
    Path("wrong.txt").write_text("chain of events\n")
    answer = call("simulate", "draw", *arguments)
    assert answer.status == 2
    assert said in answer.err
