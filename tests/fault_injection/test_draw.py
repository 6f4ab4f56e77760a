"""Stories about targets that a schedule leaves to its seed."""

import tomllib
from pathlib import Path
from random import Random

import pytest

from brokerd.overlay.generate import generate_balanced_tree, random_tree
from brokerd.overlay.outage import longest_lost
from brokerd.overlay.topology import Topology
from fault_injection.schedule.lint import lint
from fault_injection.schedule.plan import describe_draws, draw_targets, expand
from fault_injection.schedule.schedule import (
    FOLDER,
    FaultSchedule,
    ScheduleError,
    load_schedule,
    read_schedule,
)
from fault_injection.schedule.targets import is_same_target

TOPOLOGY = Topology.from_mapping(
    tomllib.loads((FOLDER.parent / "bench" / "topologies" / "demo.toml").read_text()), "demo.toml"
)
HEAD = """
schema = "pubsubctl/faults/1"
name = "story"
seed = 5
guard = { max_faulty_brokers = 9 }
"""


def read(steps: str) -> FaultSchedule:
    return read_schedule(tomllib.loads(HEAD + steps), "story.toml")


def one(verb: str, pick: str, more: str = "") -> str:
    return f'[[step]]\nid = "x"\nat = "1s"\ndo = "{verb}"\npick = {pick}\n{more}\n'


def drawn(schedule: FaultSchedule, seed: int | None = None) -> list[str]:
    return [step.on for step in draw_targets(schedule, TOPOLOGY, seed).steps]


def test_a_seed_always_draws_the_same_targets_and_others_draw_others() -> None:
    schedule = read(one("kill", '{ count = 2, from = ["b1", "b2", "b3", "b4"] }'))
    assert drawn(schedule) == drawn(schedule, 5)
    many = {tuple(drawn(schedule, seed)) for seed in range(60)}
    assert len(many) == 6, "every pair of four is drawn by some seed"
    assert all(len(set(pair)) == 2 and set(pair) <= {"b1", "b2", "b3", "b4"} for pair in many)
    for step in expand(draw_targets(schedule, TOPOLOGY, 7)):
        assert str(step).endswith(", drawn: 2 of b1, b2, b3, b4, seed 7")


def test_a_draw_of_many_is_one_line_that_names_some() -> None:
    two = draw_targets(read(one("kill", '{ count = 2, from = ["b1", "b2"] }')), TOPOLOGY, 7)
    (line,) = describe_draws(two)
    assert line.endswith(": kill b1, b2, drawn: 2 of b1, b2, seed 7")
    tree = generate_balanced_tree(40, 3, 1)
    (line,) = describe_draws(draw_targets(read(one("kill", "20")), tree, 7))
    assert " and 8 more, drawn: 20 of all brokers, seed 7" in line
    assert line.count(",") == 13


def test_a_share_is_at_least_one_of_the_available_elements() -> None:
    assert len(drawn(read(one("kill", '"30%"')))) == 3
    assert len(drawn(read(one("kill", '"1%"')))) == 1
    assert drawn(read(one("kill", "10"))) == list(TOPOLOGY.brokers)
    assert "-" in drawn(read(one("cut", '{ from = "links" }', 'for = "1s"')))[0]


@pytest.mark.parametrize("chains", ["<=delta", ">delta", "tolerated", "excess"])
def test_drawn_chains_have_the_requested_shape(chains: str) -> None:
    topology = random_tree(30, 2, Random(3).randrange)
    schedule = read(one("kill", f'{{ count = 5, chains = "{chains}" }}'))
    for seed in range(30):
        steps = draw_targets(schedule, topology, seed).steps
        numbers = [topology.number_of(step.on) for step in steps]
        assert (len(longest_lost(topology, numbers)) > 2) == (chains in (">delta", "excess")), seed


def test_a_crash_of_drawn_brokers_becomes_a_clean_crash_of_each() -> None:
    schedule = draw_targets(
        read(one("crash", "2", 'stall = "1s"\ndown = "2s"\nawait = { within = "9s" }')), TOPOLOGY
    )
    ids = [f"x-{number}-{what}" for number in (1, 2) for what in ("stall", "kill", "restart")]
    assert [step.id for step in schedule.steps] == ids
    assert len({step.on for step in schedule.steps}) == 2
    assert [str(p) for p in lint(schedule, TOPOLOGY) if p.severity == "error"] == []
    again = read_schedule(schedule.to_mapping(), "written.toml")
    assert again.steps == schedule.steps, "what a run keeps needs no drawing"


def test_a_step_like_another_breaks_the_same_links_after_it() -> None:
    schedule = read(
        one("absorb", '{ count = 3, from = "links" }', 'for = "1s"')
        + '[[step]]\nid = "y"\nafter = "x"\ndo = "cut"\npick = { like = "x" }\nfor = "1s"\n'
    )
    steps = {step.id: step for step in expand(draw_targets(schedule, TOPOLOGY))}
    for number in (1, 2, 3):
        assert is_same_target(steps[f"x-{number}"].on, steps[f"y-{number}"].on)
        assert steps[f"y-{number}"].after == (f"x-{number}", "end")
        assert steps[f"x-{number}"].ended_by == f"y-{number}"


def test_the_schedules_of_the_project_draw_nothing_and_stay_as_they_are() -> None:
    schedule = load_schedule("demo")
    assert draw_targets(schedule, TOPOLOGY).steps == schedule.steps
    assert draw_targets(schedule, TOPOLOGY, 9).seed == 9


def test_targets_that_were_drawn_stay_as_they_are_and_name_their_draw() -> None:
    again = one("restart", '{ like = "x" }').replace('"x"', '"y"', 1).replace("1s", "9s")
    once = draw_targets(read(one("kill", "2") + again), TOPOLOGY, 7)
    assert draw_targets(once, TOPOLOGY, 7) == once
    ids = [f"{name}-{place}" for name in "xy" for place in (1, 2)]
    reasons = 2 * ["2 of all brokers, seed 7"] + 2 * ["like x, seed 7"]
    assert once.drawn == dict(zip(ids, reasons, strict=True))
    assert [str(step.on) for step in once.steps[:2]] == [str(step.on) for step in once.steps[2:]]


def test_links_may_be_drawn_by_name() -> None:
    schedule = read(one("cut", '{ from = ["b1-s1", "b3-s3"] }', 'for = "1s"'))
    found = {tuple(drawn(schedule, seed)) for seed in range(20)}
    assert found == {("b1-s1",), ("b3-s3",)}


@pytest.mark.parametrize(
    "steps, said",
    [
        (one("kill", "11"), "there are 10 to draw from, not 11"),
        (one("kill", '{ from = ["b1", "b9"] }'), "no broker called 'b9'; did you mean"),
        (one("kill", '{ from = ["b1-s1"] }'), "kill is for brokers, not for links"),
        (one("kill", '{ from = "links" }'), "kill is for brokers, not for links"),
        (
            one("cut", '{ from = ["b1-s1"], chains = "<=delta" }', 'for = "1s"'),
            "b1-s1 is no broker, and chains are of brokers",
        ),
        (one("kill", '{ count = 10, chains = "<=delta" }'), "no draw of 10 of 10 has chains"),
        (one("kill", '{ like = "z" }'), "no step before it that picks is called 'z'"),
        (one("kill", '"120%"'), 'is a number, or a share such as "17%"'),
        (one("kill", "0"), "is between 1 and"),
        (one("kill", "{ out = 3 }"), "unknown key 'pick.out'"),
        (one("kill", "1", 'on = "b1"'), "needs either on or pick"),
        ('[[step]]\nid = "x"\nat = "1s"\ndo = "kill"\n', "needs either on or pick"),
        (one("host-loss", "1", 'for = "1s"'), "host-loss is for machines; name them"),
    ],
)
def test_an_impossible_draw_is_reported(steps: str, said: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        draw_targets(read(steps), TOPOLOGY)
    assert said in str(caught.value)
    assert "story.toml" in str(caught.value)


def test_a_changed_key_of_a_table_leaves_the_other_keys(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    path.write_text(
        'schema = "pubsubctl/faults/1"\nname = "t"\n[[step]]\nid = "a"\nat = "1s"\n'
        'do = "kill"\npick = { count = 1, from = ["b1", "b2", "b3"] }\n'
    )
    (step,) = load_schedule(path, {"a": {"pick.count": 2}}).steps
    assert step.pick is not None
    assert (step.pick.count, step.pick.out_of) == (2, ["b1", "b2", "b3"])
