"""Tests of lanes: schedules drawn as a line of characters per target."""

import tomllib
from random import Random
from typing import Any

import pytest

from bench.spec.spec import load_topology
from brokerd.units import SECOND_NS, parse_duration_ns
from fault_injection.schedule.lanes import steps_of
from fault_injection.schedule.lint import lint
from fault_injection.schedule.plan import expand
from fault_injection.schedule.schedule import ScheduleError, load_schedule, read_schedule

HEAD = 'schema = "pubsubctl/faults/1"\nname = "story"\n'


def planned(text: str) -> list[str]:
    schedule = read_schedule(tomllib.loads(f"{HEAD}{text}"), "story.toml")
    return [str(step) for step in expand(schedule)]


def lane(target: str, marks: str, tick: str = "1s") -> str:
    return f'[lanes]\ntick = "{tick}"\n"{target}" = "{marks}"\n'


@pytest.mark.parametrize(
    "target, marks, steps",
    [
        (
            "b1",
            "|....sssk.........r..|",
            [
                "absorb-b1: at 4s: absorb b1 for 3s, never released (kill-b1 ends it)",
                "kill-b1: after absorb-b1: kill b1",
                "restart-b1: at 17s: restart b1",
            ],
        ),
        ("b1-s1", "..xxx...", ["cut-b1-s1: at 2s: cut b1-s1 for 3s"]),
        ("b1->s1", "..x..=..", ["cut-b1-to-s1: at 2s: cut b1->s1 for 3s"]),
        (
            "b1",
            ".z.m.c..z",
            ["freeze-b1: at 1s: freeze b1 for 4s", "freeze-b1-2: at 8s: freeze b1 for 1s"],
        ),
        (
            "b1-s1",
            ".ssxx",
            [
                "absorb-b1-s1: at 1s: absorb b1-s1 for 2s, never released (cut-b1-s1 ends it)",
                "cut-b1-s1: after absorb-b1-s1: cut b1-s1 for 2s",
            ],
        ),
        ("b1", "  ▼ §▲", ["kill-b1: at 2s: kill b1", "restart-b1: at 5s: restart b1"]),
    ],
)
def test_a_lane_is_another_notation_for_steps(target: str, marks: str, steps: list[str]) -> None:
    assert planned(lane(target, marks)) == steps


def test_ticks_have_their_configured_length_and_steps_may_accompany_lanes() -> None:
    text = lane("b1", "..zz", "250ms")
    text += '[[step]]\nat = "9s"\ndo = "cut"\non = "b1-s1"\nfor = "1s"\n'
    assert planned(text) == [
        "cut-b1-s1: at 9s: cut b1-s1 for 1s",
        "freeze-b1: at 500ms: freeze b1 for 500ms",
    ]


def test_the_crash_of_the_paper_in_lanes_equals_the_shipped_schedule() -> None:
    marks = "." * 20 + "sssk" + "." * 29 + "r"
    drawn = read_schedule(tomllib.loads(HEAD + lane("b1", marks)), "story.toml")
    written = load_schedule("gd02-b1-crash")
    assert [(step.do, step.on) for step in drawn.steps] == [
        (step.do, step.on) for step in written.steps
    ]
    assert [row for row in lint(drawn, load_topology("demo")) if row.severity == "error"] == []


@pytest.mark.parametrize(
    "lanes, said",
    [
        (lane("b1", "..q.."), "'q' at 3 has no meaning: s stall"),
        (lane("b1", "..c.."), "ends nothing: no 'z' before it"),
        (lane("b1", "..j.."), "lets a broker join; see `pubsubctl topology`"),
        (lane("b1", "..k", "1"), "lanes.tick"),
        (lane("b1", "..k", "0s"), "no time at all"),
        ('[lanes]\nb1 = "k"\n', "lanes.tick"),
        ('[lanes]\ntick = "1s"\nb1 = 3\n', "a text for each target"),
        ('lanes = "k"\n', "a text for each target"),
        ("lanes = []\n", "a text for each target"),
        (lane("b1", "....."), "step"),
    ],
)
def test_an_invalid_lane_is_refused_with_its_place(lanes: str, said: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        planned(lanes)
    problems: list[Any] = [str(problem) for problem in caught.value.problems]
    assert said in problems[0]


LASTING = {"z": ("freeze", "c"), "x": ("cut", "=")}
PAUSES = (".", "m", " ", "_")


def one_fault(random: Random, mark: str, *, is_last: bool) -> tuple[str, int]:
    """Return a drawn fault and the length in ticks; only the last fault may lack an end mark."""
    run = mark * random.randrange(1, 4)
    if is_last and random.random() < 0.5:
        return f"{run}{random.choice(PAUSES)}", len(run)
    for _ in range(random.randrange(4)):
        run += random.choice((*PAUSES, mark, mark))
    return f"{run}{LASTING[mark][1]}{random.choice(PAUSES)}", len(run)


@pytest.mark.parametrize("seed", range(100))
@pytest.mark.parametrize("mark", LASTING)
def test_a_fault_lasts_to_its_end_mark_or_to_its_last_mark(mark: str, seed: int) -> None:
    """All characters between a fault and the end mark belong to the fault."""
    random = Random(seed)
    line, expected = random.choice(PAUSES) * 3, []
    number = random.randrange(1, 5)
    for place in range(number):
        drawn, lasts = one_fault(random, mark, is_last=place == number - 1)
        expected.append((f"{len(line)}s", f"{lasts}s"))
        line += drawn
    steps = steps_of({"tick": "1s", "b1": line})
    assert {step["do"] for step in steps} == {LASTING[mark][0]}
    assert [(step["at"], step["for"]) for step in steps] == expected, line


def test_only_the_cut_behind_an_absorb_waits_for_its_end() -> None:
    steps = steps_of({"tick": "1s", "b1->s1": "ssxx..xx"})
    assert [(step["do"], step.get("at"), step.get("after")) for step in steps] == [
        ("absorb", "0s", None), ("cut", None, "absorb-b1-to-s1"), ("cut", "6s", None),
    ]  # fmt: skip


EPISODES = (
    "sssk",
    "zzk",
    "xxk",
    "zzxx=",
    "sss",
    "ssxx=",
    "xx..=",
    "zz.c",
    "k",
    "r",
    "kr",
    "m",
    "s",
    "zc.r",
)


def shape(marks: str, shift: int = 0) -> list[tuple[Any, ...]]:
    """Return the steps of a lane without ids: times in ticks, `after` as a place in the list."""
    steps = steps_of({"tick": "1s", "b1": marks})
    places = {step["id"]: place for place, step in enumerate(steps)}
    return [
        (
            step["do"],
            places[step["after"]] - place if "after" in step else None,
            parse_duration_ns(step["at"]) // SECOND_NS + shift if "at" in step else None,
            step.get("for"),
        )
        for place, step in enumerate(steps)
    ]


@pytest.mark.parametrize("seed", range(60))
def test_an_episode_behind_others_has_the_same_steps_as_alone(seed: int) -> None:
    random = Random(seed)
    marks, expected = "", []
    for _ in range(random.randint(2, 4)):
        marks += "." * random.randint(1, 3)
        episode = random.choice(EPISODES)
        expected += shape(episode, len(marks))
        marks += episode
    assert shape(marks) == expected, marks


@pytest.mark.parametrize("marks, waits", [
    ("ssk", True), ("ssx", True), ("zzk", False), ("xxk", False), ("ss.k", False), ("ssr", False),
])  # fmt: skip
def test_only_a_stall_lasts_until_the_kill_or_cut_that_follows(marks: str, *, waits: bool) -> None:
    first, second = shape(marks)
    assert (second[1] == -1) == waits, (first, second)
