"""Stories about fault schedules without a lab: reading, drawing and refusals."""

import json
import tomllib
from itertools import permutations
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.spec.spec import load_topology
from bench.systems.faults import aim_at, check_verbs
from brokerd.overlay.routes import FailedElements
from brokerd.overlay.topology import Topology
from brokerd.protocols.registry import protocol_on
from brokerd.units import MILLISECOND_NS, format_duration, parse_duration_ns
from fault_injection.schedule.limits import find_permanently_ended, waits_for_ever
from fault_injection.schedule.lint import lint
from fault_injection.schedule.plan import draw_targets, expand, resolve_roles
from fault_injection.schedule.schedule import (
    FOLDER,
    FaultSchedule,
    ScheduleError,
    load_schedule,
    read_schedule,
)
from fault_injection.schedule.step import Span
from fault_injection.schedule.targets import (
    Target,
    explain_unsimulated,
    is_same_target,
    read_target,
)

SECOND_NS = 10**9
DEMO_TOPOLOGY = FOLDER.parent / "bench" / "topologies" / "demo.toml"
TOPOLOGY = Topology.from_mapping(tomllib.loads(DEMO_TOPOLOGY.read_text()), "demo.toml")

HEAD = """
schema = "pubsubctl/faults/1"
name = "story"
"""


def read(text: str, head: str = HEAD) -> FaultSchedule:
    return read_schedule(tomllib.loads(head + text), "story.toml")


def step(**keys: Any) -> str:
    """Return a [[step]] with the given keys; a key without a value is left out."""
    names = {"for_": "for", "await_": "await"}
    lines = [f"{names.get(k, k)} = {toml(v)}" for k, v in keys.items() if v is not None]
    return "\n".join(("", "[[step]]", *lines))


def toml(value: Any) -> str:
    """Return a value as TOML writes it in a line."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {toml(each)}' for key, each in value.items())} }}"
    return json.dumps(value, ensure_ascii=False)


def fault(do: str, on: str | None = "b1", **keys: Any) -> str:
    """Return step a, at 1s."""
    return step(id="a", at="1s", do=do, on=on, **keys)


def problems(text: str, head: str = HEAD, **more: Any) -> list[str]:
    """Return all problems of reading and linting, as the user sees them."""
    try:
        found = lint(read(text, head), TOPOLOGY, **more)
    except ScheduleError as error:
        return [str(problem) for problem in error.problems]
    return [f"{'warning: ' * (each.severity == 'warning')}{each}" for each in found]


ABSORB = step(id="a", at="8s", do="absorb", on="b1", for_="2s")
KILL = step(id="k", after="a", do="kill", on="b1")
RESTART = step(id="r", after="k.applied", delay="20s", do="restart", on="b1")


# ---------------------------------------------------------------- existing schedules

FOR_TOPOLOGY = {
    "corrupt": "comparison",
    "clients-crash": "durable",
    "clients-crash-long": "durable",
    "freeze-below": "chain3",
    "freeze-between": "chain3",
    "t22-finer": "t22-storages",
    "t22-gatekeeper": "t22-hi",
    "t22-gatekeepers": "t22-hi",
    "t22-publishers": "t22-storages",
    "t22-roaming": "t22-storages",
    "t22-roams": "t22-stored",
    "t22-root": "t22-storages",
    "t22-apart": "t22-hi",
    "t22-silent": "t22-stored",
    "t22-storage": "t22-stored",
}
FOR_SYSTEMS = (
    *("cut-clients", "cut-link", "disk-full", "freeze-server"),
    *("kill-leader", "kill-server", "power-loss", "slow-fsync"),
)
"""Verbs for servers of other systems."""


@pytest.mark.parametrize("name", FOR_SYSTEMS)
def test_every_schedule_for_systems_under_test_is_clean_on_a_server(name: str) -> None:
    schedule = aim_at(load_schedule(name), "n1")
    check_verbs(schedule)
    names, links = ["n1", "n2", "n3"], [["n1", "n3"], ["n2", "n3"]]
    servers = {"schema": "pubsubctl/topology/2", "name": "servers", "kind": "tree"}
    topology = Topology.from_mapping(
        {**servers, "tree": {"delta": 1}, "brokers": names, "links": links}, "servers.toml"
    )
    clients = {"n1-pub-1": "publisher", "n1-sub-1": "subscriber"}
    assert lint(draw_targets(schedule, topology), topology, clients=clients) == []


@pytest.mark.parametrize(
    "path",
    sorted(each for each in FOLDER.glob("*.toml") if each.stem not in FOR_SYSTEMS),
    ids=lambda path: path.stem,
)
def test_every_schedule_of_the_project_is_clean_on_its_brokers(path: Path) -> None:
    """The brokers are in the named topology, in the topology of the same name, or in the paper's.

    A warning, as of more faults than delta, may be intended.
    """
    topologies = sorted((FOLDER.parent / "bench" / "topologies").glob("*.toml"))
    named = FOR_TOPOLOGY.get(path.stem, path.stem)
    own = [each for each in topologies if named.startswith(each.stem)]
    topology = load_topology(max(own, key=lambda each: len(each.stem))) if own else TOPOLOGY
    schedule = load_schedule(path.stem)
    assert schedule.name == path.stem
    publishers = [(f"{each}-pub-1", each) for each in topology.brokers]
    subscribers = [(f"{each}-sub-1", each) for each in reversed(topology.brokers)]
    schedule = resolve_roles(schedule, publishers, subscribers)
    found = lint(draw_targets(schedule, topology), topology)
    assert [str(problem) for problem in found if problem.severity == "error"] == []
    assert own or found == []


def test_a_target_may_be_named_by_its_role_in_the_load() -> None:
    steps = (
        fault("kill", on="publishers"),
        step(id="b", at="2s", do="kill", on="subscribers"),
        step(id="c", at="3s", do="client-disconnect", on="subscriber 2", for_="1s"),
        step(id="d", at="4s", do="kill", on="b1"),
    )
    schedule = read("".join(steps))
    publishers = [("x-pub-1", "x"), ("y-pub-1", "y")]
    subscribers = [("z-sub-1", "z"), ("x-sub-1", "x")]
    found = resolve_roles(schedule, publishers, subscribers)
    assert [each.on for each in found.steps] == ["x", "z", "x-sub-1", "b1"]
    called_so = resolve_roles(schedule, [("p", "publishers")], subscribers)
    assert called_so.steps[0].on == "publishers", "a broker of that name"
    with pytest.raises(ScheduleError, match="step c: on = 'subscriber 2': the load has 1 subscr"):
        resolve_roles(schedule, publishers, subscribers[:1])
    with pytest.raises(ScheduleError, match="the load has no publisher") as none:
        resolve_roles(schedule, [], subscribers[:1])
    assert [problem.step for problem in none.value.problems] == [schedule.steps[0].id, "c"]


def test_the_demo_fits_in_a_minute_and_never_breaks_two_things_at_once() -> None:
    schedule = load_schedule("demo")
    assert lint(schedule, TOPOLOGY, measure_ns=60 * SECOND_NS) == []
    planned = {step.id: step for step in expand(schedule)}
    assert 2 * SECOND_NS <= (planned["absorb-b1"].duration_ns or 0) <= 3 * SECOND_NS
    assert planned["absorb-b1"].ended_by == "kill-b1", "nothing is released before the kill"
    assert planned["cut-b3-s3"].after == ("restart-b1", "recovered")


def test_a_written_schedule_reads_back_unchanged() -> None:
    for path in FOLDER.glob("*.toml"):
        schedule = load_schedule(path)
        assert read_schedule(schedule.to_mapping(), schedule.source) == schedule


# ---------------------------------------------------------------- drawing


@given(seed=st.integers(0, 2**64))
def test_a_seed_always_draws_the_same_and_stays_within_bounds(seed: int) -> None:
    schedule = load_schedule("demo")
    plan = expand(schedule, seed)
    assert plan == expand(load_schedule("demo"), seed)
    duration_ns = plan[0].duration_ns
    assert duration_ns is not None
    assert 2 * SECOND_NS <= duration_ns <= 3 * SECOND_NS
    assert plan[0].params == {"for": format_duration(duration_ns)}


@pytest.mark.parametrize(
    "text, params",
    [
        (step(id="a", at="1s", do="kill", on="b1"), {"signal": "KILL"}),
        (step(id="a", at="1s", do="kill", on="b1", signal="TERM"), {"signal": "TERM"}),
        (step(id="a", at="1s", do="absorb", on="b1", for_="2s"), {"for": "2s"}),
        (step(id="a", at="1s", do="freeze", on="b1", for_="90s"), {"for": "90s"}),
        (
            step(id="a", at="1s", do="delay", on="b1-s1", for_="2s", latency="20ms"),
            {"for": "2s", "delay_ms": "20"},
        ),
        (
            step(id="a", at="1s", do="cpu-share", on="b1", for_="2s", share="30%"),
            {"for": "2s", "share_percent": "30"},
        ),
    ],
)
def test_a_planned_step_states_all_that_was_chosen(text: str, params: dict[str, str]) -> None:
    (planned,) = expand(read(text))
    assert planned.params == params


@pytest.mark.parametrize(
    "verb, ender, delay, ends",
    [
        ("absorb", "kill", "", True),
        ("absorb", "cut", "", False),
        ("absorb", "kill", "1s", False),
        ("freeze", "kill", "", False),
        ("blackhole", "kill", "", False),
    ],
)
def test_only_a_holding_fault_is_ended_by_the_end_of_its_broker(
    verb: str, ender: str, delay: str, ends: bool
) -> None:
    """Other faults are healed first, and the broker is killed behind them."""
    first = step(id="a", at="1s", do=verb, on="b1", for_="2s")
    more = {"on": "b1-s1", "for_": "1s"} if ender == "cut" else {"on": "b1"}
    planned, _ = expand(
        read(first + step(id="k", after="a", delay=delay or None, do=ender, **more))
    )
    assert planned.ended_by == ("k" if ends else "")


def test_a_step_draws_its_own_values_whatever_other_steps_there_are() -> None:
    absorb = step(id="a", at="8s", do="absorb", on="b1", for_="1s..9s")
    other = step(id="b", at="1s", do="cut", on="b1-s1", for_="1s..9s")
    alone = expand(read(absorb))[0]
    assert alone in expand(read(other + absorb))
    drawn = {expand(read(absorb), seed)[0].duration_ns for seed in range(50)}
    assert len(drawn) > 40, "the seed decides"


def test_a_crash_is_short_for_absorb_kill_and_restart() -> None:
    schedule = read(step(id="x", at="5s", do="crash", on="b1", stall="2s", down="30s"))
    stall, kill, restart = expand(schedule)
    assert (stall.verb, stall.at_ns, stall.duration_ns) == ("absorb", 5 * SECOND_NS, 2 * SECOND_NS)
    assert (stall.id, stall.ended_by) == ("x-stall", "x-kill")
    assert (kill.id, kill.verb, kill.after, kill.exit_signal) == (
        "x-kill",
        "kill",
        ("x-stall", "end"),
        9,
    )
    assert (restart.verb, restart.after, restart.delay_ns) == (
        "restart",
        ("x-kill", "applied"),
        30 * SECOND_NS,
    )
    assert lint(schedule, TOPOLOGY) == []


def test_a_crash_without_stall_is_a_kill_at_its_time() -> None:
    (kill,) = expand(read(step(id="x", at="5s", do="crash", on="b1")))
    assert (kill.verb, kill.at_ns) == ("kill", 5 * SECOND_NS)


def test_a_step_with_times_is_done_again_after_each_pause() -> None:
    text = step(id="w", at="2s", do="freeze", on="b1", for_="1s", times=3, pause="4s")
    first, *others = expand(read(text))
    assert (first.id, first.verb, first.at_ns) == ("w-1", "freeze", 2 * SECOND_NS)
    assert [(each.id, each.after, each.delay_ns) for each in others] == [
        ("w-2", ("w-1", "end"), 4 * SECOND_NS),
        ("w-3", ("w-2", "end"), 4 * SECOND_NS),
    ]
    assert {each.duration_ns for each in (first, *others)} == {SECOND_NS}


def test_a_client_roams_to_one_place_after_the_other_and_again() -> None:
    where = ["b1", "b2"]
    text = step(id="w", at="2s", do="client-roam", on="s1-sub-1", to=where, times=3, pause="1s")
    moves = expand(read(text))
    assert [move.parameters["to"] for move in moves] == ["b1", "b2", "b1"]
    assert [move.after for move in moves[1:]] == [("w-1", "observed"), ("w-2", "observed")]


@pytest.mark.parametrize(
    "steps,ended_by",
    [
        (ABSORB + KILL, "k"),
        (ABSORB + step(id="k", after="a", do="term", on="b1"), "k"),
        (ABSORB + step(id="k", after="a", delay="0s", do="kill", on="b1"), "k"),
        (ABSORB + step(id="k", after="a", delay="1s", do="kill", on="b1"), ""),
        (ABSORB + step(id="k", after="a.healed", do="kill", on="b1"), ""),
        (ABSORB + step(id="k", after="a", do="kill", on="b2"), ""),
        (ABSORB, ""),
        (
            step(id="a", at="8s", do="absorb", on="b1-s1", for_="2s")
            + step(id="k", after="a", do="cut", on="s1-b1", for_="2s"),
            "k",
        ),
    ],
)
def test_an_absorb_is_released_unless_its_own_target_dies_at_its_end(
    steps: str, ended_by: str
) -> None:
    assert expand(read(steps))[0].ended_by == ended_by


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "text,complaint",
    [
        ("", "story.toml: key 'step' is missing"),
        (step(do="kill", on="b1"), "step kill-b1: needs either at or after"),
        (step(at="1s", after="x", do="kill", on="b1"), "step kill-b1: needs either at or after"),
        (fault("kill", times=2, pause="1s"), "step a: times = '2': kill takes none; only"),
        (fault("freeze", for_="1s", times=2), "step a: times and pause go together"),
        (
            fault("client-roam", on="s1-sub-1", to=["b1", "b2"]),
            "step a: to = ['b1', 'b2']: several places are for a step with times",
        ),
        (
            fault("freeze", on=None, pick=1, for_="1s", times=2, pause="1s"),
            "step a: times = 2: what is drawn is done once",
        ),
        (fault("cpu-share", for_="1s", share=25), 'step a: share = 25: a share is "1%" to "99%"'),
        (fault("cpu-share", for_="1s"), "step a: do = 'cpu-share': needs share"),
        (
            fault("freeze", for_="1s", share="25%"),
            "step a: share = '25%': freeze takes none; only cpu-share",
        ),
        (fault("absorp", for_="1s"), "step a: do = 'absorp': no such verb; did you mean 'absorb'?"),
        (fault("stall", for_="1s"), "step a: do = 'stall': no such verb; did you mean 'absorb'?"),
        (step(id="a", at=8, do="kill", on="b1"), 'step a: at = 8: a duration is "2.5s"'),
        (
            step(id="a", at="8", do="kill", on="b1"),
            "step a: at = '8': a duration has a number and a unit",
        ),
        (fault("absorb", for_="3s..2s"), "step a: for = '3s..2s': write the shorter bound first"),
        (
            fault("absorb", for_={"normal": ["1s", "2s"]}),
            "step a: for = { normal = ['1s', '2s'] }: a duration is",
        ),
        (fault("absorb"), "step a: do = 'absorb': needs a for"),
        (fault("absorb", for_="0s"), "step a: for = '0s': lasts no time at all"),
        (
            fault("kill", for_="1s"),
            "step a: for = '1s': kill takes none; only absorb, send-omission",
        ),
        (fault("kill", signal="STOP"), "step a: signal = 'STOP': no signal that kills"),
        (
            fault("freeze", for_="1s", signal="KILL"),
            "step a: signal = 'KILL': freeze takes none; only kill",
        ),
        (
            fault("freeze", for_="1s", latency="5ms"),
            "step a: latency = '5ms': freeze takes none; only delay, ",
        ),
        (fault("kill", xyz="hard"), "step a: unknown key 'xyz'; known: id, at, after"),
        (
            fault("kill", expect={"exit_signal": "9"}),
            "step a: expect.exit_signal = '9': a whole number",
        ),
        (
            fault("kill", expect={"exit_sgnal": 9}),
            "step a: unknown key 'expect.exit_sgnal'; did you mean 'exit_signal'?",
        ),
        (fault("kill", delay="1s"), "step a: delay = '1s': can be used with `after` only"),
        (step(id="A b", at="1s", do="kill", on="b1"), "id = 'A b': ids are of"),
        (KILL + KILL + ABSORB, "step k: id = 'k': another step has this id"),
        (
            ABSORB + step(id="k", after="a.applyed", do="kill", on="b1"),
            "step k: after = 'a.applyed': no stage 'applyed'; did you mean 'applied'?",
        ),
        (
            ABSORB + step(id="k", after="ab", do="kill", on="b1"),
            "step k: after = 'ab': no step called 'ab'; did you mean 'a'?",
        ),
        (
            step(id="c", at="1s", do="crash", on="b1", down="1s")
            + step(id="k", after="c.recovered", do="kill", on="b2"),
            "step k: after = 'c.recovered': no step called 'c'; it is c-kill, then c-restart",
        ),
        (
            step(id="k", at="1s", do="kill", on="b7"),
            "step k: on = 'b7': no broker called 'b7'; did you mean",
        ),
        (
            step(id="k", at="1s", do="cut", on="b1-s3", for_="1s"),
            "step k: on = 'b1-s3': b1-s3 is no link of demo; there are p1-b1, b1-s1, b1-s2, b1-b2",
        ),
        (
            step(id="k", at="1s", do="cut", on="b1->x1", for_="1s"),
            "step k: on = 'b1->x1': no broker called 'x1'",
        ),
        (
            step(id="k", at="1s", do="freeze", on="b1-s1", for_="1s"),
            "step k: on = 'b1-s1': freeze is for brokers, not for links",
        ),
        (
            step(id="k", at="1s", do="kill", on="b1->s1"),
            "step k: on = 'b1->s1': kill is for brokers, not for links",
        ),
        (
            step(id="a", after="b.applied", do="kill", on="b1")
            + step(id="b", after="c.applied", do="kill", on="b2")
            + step(id="c", after="a.applied", do="kill", on="b3"),
            "step a: after = 'b.applied': a after b after c after a: none of them ever begins",
        ),
        (
            step(id="a", after="a.applied", do="kill", on="b1"),
            "step a: after = 'a.applied': a after a: none of them ever begins",
        ),
        (
            step(id="k", at="1s", do="kill", on="b1") + step(id="l", after="k", do="kill", on="b2"),
            "step l: after = 'k': kill has no end of its own; k.applied is when it was done",
        ),
        (
            ABSORB + KILL + RESTART + step(id="l", after="k.recovered", do="term", on="b2"),
            "step l: after = 'k.recovered': a broker that was ended does not recover by itself; "
            "r.recovered does",
        ),
        (
            ABSORB
            + KILL
            + step(id="c", after="k.applied", do="corrupt", on="b1")
            + step(id="r", after="c.recovered", do="restart", on="b1"),
            "step r: after = 'c.recovered': corrupt does not recover; c.observed is when its "
            "effect was seen",
        ),
        (
            ABSORB + KILL + step(id="l", after="a.healed", do="kill", on="b2"),
            "step l: after = 'a.healed': a is never healed: its target is killed or cut",
        ),
        (
            step(id="r", at="1s", do="restart", on="b1"),
            "step r: do = 'restart': no step surely ends b1 before it is started again",
        ),
        (
            step(id="c", at="1s", do="corrupt", on="b1"),
            "step c: do = 'corrupt': b1 runs or may run by then; kill it before",
        ),
        (
            step(id="k", at="1s", do="kill", on="b1")
            + step(id="r", at="2s", do="restart", on="b1")
            + step(id="c", at="3s", do="corrupt", on="b1"),
            "step c: do = 'corrupt': b1 runs or may run by then; kill it before",
        ),
        (
            step(id="k", at="1s", do="kill", on="b1")
            + step(id="c", at="2s", do="corrupt", on="b1", damage="bits"),
            "step c: damage = 'bits': no such damage; did you mean 'bit'?",
        ),
        (
            step(id="k", at="1s", do="kill", on="b1", file="logs/*"),
            "step k: file = 'logs/*': kill takes none; only corrupt",
        ),
        (
            step(id="k", at="1s", do="kill", on="b1")
            + step(id="c", at="2s", do="cut", on="b1-s1", for_="1s"),
            "step c: on = 'b1-s1': k has ended b1 by then",
        ),
    ],
)
def test_a_mistake_in_a_step_is_named_with_its_key_and_value(text: str, complaint: str) -> None:
    found = problems(text)
    assert any(complaint in line for line in found), found
    assert all(line.startswith("story.toml:") for line in found)


@pytest.mark.parametrize(
    "head,complaint",
    [
        (HEAD.replace("faults/1", "faults/2"), "schema = 'pubsubctl/faults/2'"),
        (HEAD + "sede = 3\n", "unknown key 'sede'; did you mean 'seed'?"),
        (HEAD + "seed = -1\n", "seed = -1"),
        (HEAD + 'origin = "now"\n', "origin = 'now'"),
        (HEAD + "[guard]\nlease = 15\n", "guard.lease = 15: a duration has a number and a unit"),
        (HEAD + '[guard]\nlease = "0s"\n', "guard.lease = '0s': at least 1s"),
        (HEAD + "[guard]\nleese = 15\n", "unknown key 'guard.leese'; did you mean 'lease'?"),
        (HEAD + '[exercised]\nsubscribers_on_path = ["s9"]\n', "no broker called 's9'"),
        (HEAD + "[guard]\nmax_faulty_brokers = 2\n", "more than the 1 that demo tolerates"),
    ],
)
def test_a_mistake_outside_of_steps_is_named(head: str, complaint: str) -> None:
    found = problems(ABSORB, head)
    assert any(complaint in line for line in found), found


def test_all_mistakes_of_all_steps_are_named_at_once() -> None:
    steps = (
        ("one", 'at = "3"\ndo = "freez"\non = "b2"'),
        ("two", 'do = "freeze"\non = "b1"\nfor = "2s"'),
        ("three", 'at = "1s"\ndo = "cut"\non = "b1-s1"\nfro = "2s"'),
        ("four", 'at = "1s"\ndo = "kil"\non = "b1"'),
    )
    found = problems("".join(f'[[step]]\nid = "{name}"\n{text}\n' for name, text in steps))
    assert [line.removeprefix("story.toml: step ") for line in found] == [
        "one: at = '3': a duration has a number and a unit (ns, us, ms, s, min, h): "
        '"250ms", "1min30s"; did you mean "3s"?',
        "three: unknown key 'fro'; did you mean 'for'?",
        "one: do = 'freez': no such verb; did you mean 'freeze'?",
        "two: needs either at or after",
        "four: do = 'kil': no such verb; did you mean 'kill'?",
    ]


MACHINES = {"n01": ("p1", "b1"), "n02": ("b3",), "n03": ()}


def problems_on_machines(text: str, machines: dict[str, tuple[str, ...]] | None) -> list[str]:
    try:
        return [str(problem) for problem in lint(read(text), TOPOLOGY, machines=machines)]
    except ScheduleError as error:
        return [str(problem) for problem in error.problems]


@pytest.mark.parametrize(
    "keys, complaint",
    [
        ({"do": "host-loss", "on": "n01"}, "fails 2 brokers or links at once; at most 1 may"),
        ({"do": "host-loss", "on": "n9"}, "no machine called 'n9'; known: n01, n02, n03"),
        ({"do": "host-loss", "on": "b3"}, "no machine called 'b3'; it is a broker on n02"),
        ({"do": "host-loss", "on": "n03"}, "no broker is on n03"),
        ({"do": "partition", "on": "p1|b1,b3"}, "fails 2 brokers or links at once"),
        ({"do": "partition", "on": "p1|p1"}, "p1 is in two sets"),
        ({"do": "partition", "on": "p1|"}, "sets are written as"),
        ({"do": "partition", "on": "b1->s1"}, "is for sets of brokers"),
        ({"do": "delay", "on": "b1"}, "needs latency"),
        ({"do": "slow-fsync", "on": "b1->s1", "latency": "1s"}, "slow-fsync is for brokers, not"),
        ({"do": "disk-full", "on": "b1", "latency": "1s"}, "disk-full takes none; only delay, "),
        ({"do": "host-lost", "on": "n01"}, "did you mean 'host-loss'"),
        ({"do": "latency", "on": "b1"}, "did you mean 'delay'"),
        ({"do": "cut", "on": "b1", "backend": "iptables"}, "no such backend"),
    ],
)
def test_the_newer_verbs_are_checked_as_the_others_are(
    keys: dict[str, str], complaint: str
) -> None:
    text = step(id="a", at="1s", for_="1s", **keys)
    found = problems_on_machines(text, MACHINES)
    assert any(complaint in line for line in found), found


def test_delays_and_full_disks_do_not_count_as_failures() -> None:
    both = step(id="d", at="1s", do="delay", on="b1", latency="1s", for_="9s") + step(
        id="f", at="2s", do="disk-full", on="b3", for_="9s"
    )
    assert problems(both + step(id="c", at="3s", do="cut", on="p1-b1", for_="1s")) == []


def test_machines_are_believed_where_nothing_is_placed() -> None:
    text = fault("host-loss", on="anything", for_="1s")
    (found,) = lint(read(text), TOPOLOGY, machines=None)
    assert found.severity == "warning"


def test_a_machine_full_of_brokers_is_judged_at_once() -> None:
    """A hundred brokers that fail together count as one element, not as 2^100 sets."""
    topology = load_topology(FOLDER.parent / "bench" / "topologies" / "tree100.toml")
    text = fault("host-loss", on="n", for_="1s")
    wide = HEAD + "[guard]\nmax_faulty_brokers = 100\n"
    machines = {"n": topology.brokers}
    found = lint(read(text, wide), topology, machines=machines)
    assert [problem for problem in found if problem.severity == "error"] == []
    (problem, *_) = lint(read(text), topology, machines=machines)
    assert "fails 100 brokers or links at once" in str(problem)


def test_an_unknown_schedule_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(ScheduleError, match="did you mean 'demo'"):
        load_schedule("deno")
    with pytest.raises(ScheduleError, match="no such file"):
        load_schedule("elsewhere/demo.toml")


def test_a_file_that_is_not_toml_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text("[[step]\n")
    with pytest.raises(ScheduleError, match=r"x\.toml: .*line 1"):
        load_schedule(path)


# ---------------------------------------------------------------- words


@pytest.mark.parametrize(
    "text,duration_ns",
    [("250ms", 250_000_000), ("2.5s", 2_500_000_000), ("1min30s", 90 * SECOND_NS), ("0s", 0)],
)
def test_durations_have_units(text: str, duration_ns: int) -> None:
    assert parse_duration_ns(text) == duration_ns


@pytest.mark.parametrize("text", ["5", "", "s", "-1s", "1e3s", "5sec", "0.1ms", "5m", None, 5])
def test_an_invalid_duration_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"unit|whole number of milliseconds"):
        parse_duration_ns(text, MILLISECOND_NS)


@given(milliseconds=st.integers(0, 10**7))
def test_a_formatted_duration_reads_as_itself(milliseconds: int) -> None:
    duration_ns = milliseconds * 1_000_000
    assert parse_duration_ns(format_duration(duration_ns)) == duration_ns
    assert Span.read(str(Span(duration_ns, duration_ns + 1_000_000))).low_ns == duration_ns


def test_targets_are_brokers_links_and_directions() -> None:
    assert read_target("b1", TOPOLOGY) == Target(("b1",))
    assert read_target("b1-s1", TOPOLOGY) == Target(("b1", "s1"))
    assert read_target("s1->b1", TOPOLOGY) == Target(("s1", "b1"), one_way=True)
    assert str(read_target("s1->b1", TOPOLOGY)) == "s1->b1"
    assert is_same_target("b1-s1", "s1-b1")
    for one, other in permutations(("b1->s1", "s1->b1", "b1-s1"), 2):
        assert not is_same_target(one, other)
    two = {"m": ("b1", "s1")}
    for text, verb, is_link in (
        *(("b1-s1", "cut", True), ("s1->b1", "cut", True), ("b1", "cut", False)),
        *(("b1|s1", "partition", False), ("m", "host-loss", False)),
    ):
        assert read_target(text, TOPOLOGY, verb, two).is_link == is_link, text


@pytest.mark.parametrize(
    "verb, on, reason",
    [
        ("absorb", "b1", ""),
        ("absorb", "b1-s1", ""),
        ("absorb", "b1->s1", "simulated is absorb on a broker or link, not on directions"),
        ("cut", "b1->s1", ""),
        ("cut", "b1", "simulated is cut on a link or direction, not on brokers"),
        ("kill", "b1", ""),
        ("delay", "b1-s1", "needs real processes"),
    ],
)
def test_a_target_that_is_not_simulated_has_a_reason(verb: str, on: str, reason: str) -> None:
    found = explain_unsimulated(verb, read_target(on, TOPOLOGY, verb))
    assert found == (f"needs real processes: {reason}" if "simulated" in reason else reason)


def test_the_topology_resolves_names_that_contain_a_dash() -> None:
    values = {
        "schema": "pubsubctl/topology/1",
        "name": "dashes",
        "kind": "tree",
        "brokers": ["a", "a-b", "b-c", "c"],
        "links": [["a", "a-b"], ["a", "b-c"], ["a-b", "c"]],
    }
    dashes = Topology.from_mapping(values, "dashes")
    assert read_target("a-b", dashes) == Target(("a-b",)), "a broker comes first"
    assert read_target("a-b-c", dashes) == Target(("a", "b-c"))
    assert read_target("a-a-b", dashes) == Target(("a", "a-b"))


# ---------------------------------------------------------------- many steps


def many_cuts(count: int) -> str:
    return "".join(
        step(id=f"s{n}", at=f"{n * 100}ms", do="cut", on="b3-s3", for_="10ms") for n in range(count)
    )


def test_a_schedule_with_too_many_steps_is_refused() -> None:
    with pytest.raises(ScheduleError, match="20,000 steps; at most 2,000"):
        read(many_cuts(20_000))
    assert len(read(many_cuts(2_000)).steps) == 2_000


def test_lint_looks_at_each_target_a_few_times_however_many_steps_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schedule = read(many_cuts(300))
    looked: list[str] = []

    def counted(text: str, *more: Any) -> Target:
        looked.append(text)
        return read_target(text, *more)

    monkeypatch.setattr("fault_injection.schedule.lint.read_target", counted)
    assert [p for p in lint(schedule, TOPOLOGY) if p.severity == "error"] == []
    assert 300 <= len(looked) < 10 * 300


def test_both_bounds_of_a_span_are_drawn() -> None:
    span, random = Span.read("1ms..3ms"), Random(1)
    assert {span.draw(random) for _ in range(100)} == {1_000_000, 2_000_000, 3_000_000}


# ---------------------------------------------------------------- brokers that do not come back


def _end(number: int, on: str, verb: str = "kill") -> str:
    return step(id=f"{verb}{number}", at=f"{number}0s", do=verb, on=on)


@pytest.mark.parametrize(
    "text, gone",
    [
        (_end(1, "b1"), ("b1",)),
        (_end(1, "b1") + _end(2, "b1", "restart"), ()),
        (_end(1, "b1") + _end(2, "b1", "restart") + _end(3, "b1", "term"), ("b1",)),
        (_end(1, "b3") + _end(2, "b1"), ("b3", "b1")),
        (_end(1, "b3") + _end(2, "b1") + _end(3, "b3", "restart"), ("b1",)),
        (step(id="f", at="1s", do="freeze", on="b1", for_="1s"), ()),
    ],
)
def test_a_broker_is_gone_if_it_is_ended_more_often_than_started(
    text: str, gone: tuple[str, ...]
) -> None:
    schedule = read(text)
    assert find_permanently_ended(schedule) == gone
    for protocol in ("delta_tree", "best_effort"):
        running = protocol_on(TOPOLOGY, protocol)
        numbers = tuple(sorted(map(TOPOLOGY.number_of, gone)))
        excess = running.excess(FailedElements(numbers, ()))
        waits = bool(gone) and running.promises().exactly_once and excess is not None
        assert bool(waits_for_ever(schedule, running)) == waits
