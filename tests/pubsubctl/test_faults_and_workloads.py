"""Stories about names of faults and workloads: errors are refused before any process starts."""

import re
from pathlib import Path
from typing import Any

import pytest

from bench.run.outcome import RunOutcome
from bench.spec.spec import load_experiment, load_topology
from brokerd.model.fault_verbs import CLIENT_VERBS, VERB_TABLE, VERBS
from brokerd.overlay.generate import generate_balanced_tree
from brokerd.protocols.registry import protocol_on
from fault_injection.schedule.lint import lint
from fault_injection.schedule.schedule import load_schedule
from pubsubctl.deployment.placement import PlacedBroker, Placement
from pubsubctl.injection.faults import settle_schedule
from pubsubctl.injection.selftest import trials
from pubsubctl.runs.experiment import numbers_text
from tests.pubsubctl.conftest import Call

ROOT = Path(__file__).parents[2]
SCHEDULE = """\
schema = "pubsubctl/faults/1"
name = "mine"
[[step]]
id = "one"
at = "1s"
do = "kill"
on = "c2"
"""


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["kil", "c2"], "no verb called 'kil'; did you mean 'kill'?"),
        (["kill", "c9"], "no broker called 'c9'; did you mean"),
        (["cut", "c1-c3", "--for", "1s"], "is no link of chain3; there are c1-c2"),
        (["freeze", "c1-c2", "--for", "1s"], "freeze is for brokers, not for links"),
        (["absorb", "c2"], "needs a for: how long it lasts"),
        (["absorb", "c2", "--for", "3"], "a duration has a number and a unit"),
        (["kill", "c2", "--for", "1s"], "kill takes none"),
        (["kill", "c2", "--signal", "KIL"], "did you mean 'KILL'?"),
        (["partition", "c1|c2", "--for", "1s", "--mode", "soft"], "mode = 'soft'"),
        (["partition", "c1|c9", "--for", "1s"], "no broker called 'c9'"),
        (["partition", "c1,c2|c2", "--for", "1s"], "c2 is in two sets"),
        (["partition", "c1,c2,c3", "--for", "1s"], "name a smaller one to separate it"),
        (["delay", "c1-c2", "--for", "1s"], "needs latency"),
        (["delay", "c1-c2", "--for", "1s", "--latency", "2min"], "is between 1ms and 60s"),
        (["bandwidth", "c1-c2", "--for", "1s"], "needs bytes_per_second"),
        (["disk-full", "c1-c2", "--for", "1s"], "disk-full is for brokers, not for links"),
        (["freeze", "c2", "--for", "1s", "--backend", "nft"], "freeze takes none; only blackhole"),
        (["cut", "c1-c2", "--for", "1s", "--backend", "nf"], "did you mean 'nft'?"),
        (["slow-fsyn", "c2"], "did you mean 'slow-fsync'?"),
        (["demo", "--latency", "1s"], "--latency: only with VERB TARGET"),
        (["demoo"], "did you mean 'demo'?"),
        (["demo"], "no broker called 'b1'"),
        ([], "name a SCHEDULE, or a VERB and its TARGET"),
    ],
)
def test_a_fault_that_cannot_be_is_refused_without_a_lab(
    call: Call, arguments: list[str], said: str
) -> None:
    answer = call("inject", *arguments, "--topology", "chain3", "--lint")
    assert answer.status == 2
    assert said in answer.err
    assert answer.out == ""


def test_a_schedule_is_checked_without_a_lab(call: Call, project: Path) -> None:
    answer = call("inject", "demo", "--topology", "demo", "--lint")
    assert answer.status == 0, answer.err
    assert "ok, 4 steps on demo\n" in answer.out
    (project / "s.toml").write_text(SCHEDULE)
    checked = call("inject", "s.toml", "--topology", "chain3", "--lint")
    assert checked.out == "s.toml: ok, 1 step on chain3\n"
    elsewhere = call("inject", "s.toml", "--topology", "demo", "--lint")
    assert (elsewhere.status, elsewhere.err.splitlines()[-1]) == (2, "       checked on demo")
    (project / "s.toml").write_text(SCHEDULE + 'whenn = "2s"\n')
    unknown = call("inject", "s.toml", "--topology", "chain3", "--lint")
    assert unknown.status == 2
    assert "s.toml" in unknown.err
    assert "unknown key 'whenn'" in unknown.err


def test_a_verb_without_a_target_names_the_kinds_of_targets(call: Call) -> None:
    answer = call("inject", "cut")
    assert (answer.status, answer.err) == (
        2, "error: inject cut: name its TARGET, a broker or link\n",
    )  # fmt: skip


def test_without_a_lab_the_topology_has_to_be_named(call: Call) -> None:
    answer = call("inject", "demo", "--lint")
    assert answer.status == 2
    assert "nothing is deployed; name the topology to check against" in answer.err


def test_a_preview_shows_what_the_seed_draws(call: Call) -> None:
    arguments = ("inject", "demo", "--topology", "demo", "--preview")
    first, again = call(*arguments, "--seed", "1"), call(*arguments, "--seed", "1")
    assert first.out == again.out
    assert first.out != call(*arguments, "--seed", "2").out
    assert "absorb b1 for 2" in first.out


def test_verbs_and_schedules_are_listed(call: Call) -> None:
    answer = call("inject", "--list")
    assert "absorb             broker or link          --for TIME" in answer.out
    assert "host-loss          machine                 --for TIME" in answer.out
    assert "demo" in answer.out
    verbs = call("inject", "--list", "-j").document["verbs"]
    assert {row["verb"] for row in verbs} >= {"kill", "partition", "disk-full", "host-loss"}
    assert all(row["needs"] and row["seen_by"] for row in verbs)
    lasting = {row["verb"] for row in verbs if row["undone_by"]}
    assert {row["verb"] for row in verbs} - lasting == {"restart", "corrupt", "client-roam"}
    assert "nothing to undo" not in answer.out


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["dmeo"], "did you mean 'demo'?"),
        (["demo", "--protocol", "delta_trees"], "did you mean 'delta_tree'?"),
        (["demo", "--rate", "25"], "a rate has a number and a period"),
        (["demo", "--duration", "10"], "a duration has a number and a unit"),
        (["demo", "--duration", "99999999999h"], "a duration is at most 10000h"),
        (["demo", "--size", "many"], "a size has a number and a unit"),
        (["demo", "--faults", "demos"], "did you mean 'demo'?"),
        (["demo", "--topology", "chain3"], "topology 'chain3' has no such broker"),
        (["chain3", "--faults", "demo"], "calm = true excludes faults"),
        (["demo", "--label", "x"], "write KEY=VALUE"),
        (["demo", "--label", "brokers=simulated"], "a run itself sets the label 'brokers'"),
        (["demo", "--duration", "5s", "--faults", "demo"], "after the origin"),
        (["demo", "--role", "b1=0"], "with delta_tree no broker changes its role"),
        (["t22-stored", "--role", "n19"], "--role n19: not BROKER=LEVEL or BROKER=retired"),
        (["t22-stored", "--role", "n91=3"], "did you mean 'n9'?"),
        (["t22-stored", "--role", "n19=4"], "a level from 0 to 3"),
        (["t22-stored", "--role", "n1=retired"], "n1 is the root storage of its unit"),
        (["t22-stored", "--role", "n19=3", "--rolling"], "one run of our brokers only"),
        (["gd02.fig6", "--role", "n19=3"], "one run of our brokers only"),
        (["external/jetstream1", "--role", "n19=3"], "one run of our brokers only"),
    ],
)
def test_an_experiment_that_cannot_be_is_refused(
    call: Call, arguments: list[str], said: str
) -> None:
    for more in ([], ["--dry-run"]):
        answer = call("bench", *arguments, *more)
        assert answer.status == 2
        assert said in answer.err
        assert answer.out == ""


def test_a_dry_run_of_bench_lists_deployment_load_and_faults(call: Call) -> None:
    answer = call("bench", "demo", "--faults", "demo", "-n")
    assert answer.status == 0, answer.err
    lines = answer.out.splitlines()
    assert "start-broker t1 p1 127.0.0.1:23500 delta_tree" in lines
    assert any(line.startswith("load 4 publishers, 5 subscribers") for line in lines)
    assert any(line.startswith("fault kill-b1: after absorb-b1") for line in lines)


def test_a_selftest_needs_a_deployment_and_accepts_no_verb(call: Call) -> None:
    assert "it takes no other" in call("inject", "--selftest", "kill", "c2").err
    answer = call("inject", "--selftest")
    assert answer.status == 4
    assert "nothing is deployed" in answer.err


@pytest.mark.parametrize("name", ["demo", "chain3", "tree100"])
def test_a_selftest_tries_every_verb_there_is(name: str) -> None:
    """Each trial is a schedule without errors on its topology."""
    topology = load_topology(Path(__file__).parents[2] / "bench" / "topologies" / f"{name}.toml")
    rows = [
        PlacedBroker(broker, "n01", 21000 + number)
        for number, broker in enumerate(topology.brokers)
    ]
    tried, one_way = set(), set()
    for trial in trials(protocol_on(topology), Placement(tuple(rows), "n01")):
        schedule = trial.schedule(topology)
        machines = {"n01": topology.brokers}
        found = lint(schedule, topology, machines=machines)
        assert [str(each) for each in found if each.severity == "error"] == []
        tried |= {step.do for step in schedule.steps}
        one_way |= {step.do for step in schedule.steps if "->" in (step.on or "")}
    assert one_way == {
        verb.name for verb in VERB_TABLE.values() if any(each.is_one_way for each in verb.trials)
    }
    # A crash is absorb, kill and restart; nothing undoes corrupt; clients are those of a bench.
    assert tried == set(VERBS) - {"crash", "corrupt", *CLIENT_VERBS}


@pytest.mark.parametrize("brokers, killed", [(250, 42), (500, 85)])
def test_the_large_trees_match_their_files(brokers: int, killed: int) -> None:
    bench = Path(__file__).parents[2] / "bench"
    spec = load_experiment(bench / "workloads" / f"tree{brokers}.toml")
    generated = generate_balanced_tree(brokers, 5, 3)
    assert (spec.topology.brokers, spec.topology.links) == (generated.brokers, generated.links)
    subscribed = {plan.broker for plan in spec.subscriber_plans()}
    assert subscribed == {f"b{number}" for number in range(1, brokers, 2)}
    schedule = settle_schedule(load_schedule(f"tree{brokers}"), spec.topology)
    found = lint(schedule, spec.topology, measure_ns=spec.workload.phases.measure)
    assert [str(each) for each in found if each.severity == "error"] == []
    lost = {step.on for step in schedule.steps}
    assert (len(lost), lost & subscribed) == (killed, set())


def test_nft_is_tried_where_it_can_distinguish_brokers() -> None:
    topology = load_topology(Path(__file__).parents[2] / "bench" / "topologies" / "demo.toml")

    def tried(machines: int) -> dict[str, Any]:
        rows = [
            PlacedBroker(name, f"n{at % machines}", 21000 + at, ip=f"10.0.0.{at % machines}")
            for at, name in enumerate(topology.brokers)
        ]
        found = list(trials(protocol_on(topology), Placement(tuple(rows), "n0")))
        return next(dict(t.steps[0]) for t in found if t.is_optional)

    assert (tried(10)["do"], tried(10)["on"]) == ("blackhole", "b1-s1")
    assert (tried(2)["do"], tried(2)["on"]) == ("partition", "b1,b3,s1,s3,s5")


def test_the_loss_of_a_machine_is_judged_by_the_planned_placement(
    call: Call, project: Path
) -> None:
    lost = SCHEDULE.replace('"kill"', '"host-loss"').replace('"c2"', '"t1"') + 'for = "1s"\n'
    (project / "s.toml").write_text(lost)
    answer = call("bench", "demo", "--faults", "s.toml", "--dry-run")
    assert answer.status == 2
    assert "at once; at most 1 may" in answer.err
    (project / "s.toml").write_text(lost.replace('"t1"', '"t9"'))
    answer = call("bench", "demo", "--faults", "s.toml", "--dry-run")
    assert answer.status == 2
    assert "no machine called 't9'; did you mean 't" in answer.err


def test_a_fault_that_nft_cannot_separate_is_refused_before_the_run(
    call: Call, project: Path
) -> None:
    text = SCHEDULE.replace('"kill"', '"cut"').replace('"c2"', '"b1-s1"')
    (project / "s.toml").write_text(text + 'for = "1s"\nbackend = "nft"\n')
    answer = call("bench", "demo", "--faults", "s.toml", "--dry-run")
    assert answer.status == 2
    assert "nft cannot separate" in answer.err


def test_targets_are_drawn_from_the_seed_that_is_shown(call: Call) -> None:
    arguments = ("inject", "kill", "--pick", "20%", "--topology", "demo", "--preview")
    first, again = call(*arguments, "--seed", "3"), call(*arguments, "--seed", "3")
    assert first.status == 0, first.err
    assert first.out == again.out
    assert first.out.count("drawn: 20% of all brokers, seed 3") == 2
    assert "fails 2 brokers or links at once; at most 1 may" in first.err
    assert len({call(*arguments, "--seed", str(seed)).out for seed in range(4)}) > 1
    refused = call("inject", "demo", "--pick", "1", "--topology", "demo", "--preview")
    assert refused.status == 2
    assert "only with a VERB" in refused.err


def test_healing_where_nothing_is_broken_changes_nothing(call: Call) -> None:
    for _ in range(2):
        answer = call("heal")
        assert (answer.status, answer.out) == (0, "nothing to heal\n")
    answer = call("heal", "--verify")
    assert (answer.status, answer.out) == (0, "nothing to heal\nno host: nothing is deployed\n")


def test_a_filter_of_very_many_values_is_not_echoed_whole(call: Call, project: Path) -> None:
    values = ", ".join(map(str, range(200_000)))
    workload = (ROOT / "bench" / "workloads" / "chain3.toml").read_text()
    bad = re.sub(r'filter = ".*"', f'filter = "symbol in ({values}) and"', workload)
    (project / "bad.toml").write_text(bad)
    answer = call("bench", "bad.toml", "-n")
    assert answer.status == 2
    assert "subscribers[0].filter = 'symbol in (0, 1, 2," in answer.err
    assert len(answer.err) < 1_000


def test_the_numbers_of_a_partial_run_are_marked_as_partial(tmp_path: Path) -> None:
    assert numbers_text(RunOutcome(run_directory=tmp_path, state="complete")).startswith(
        "in measure: "
    )
    assert numbers_text(RunOutcome(run_directory=tmp_path, state="partial")).startswith(
        "the run is partial; in "
    )


def test_a_run_reports_its_limit_and_its_validity_as_a_result(tmp_path: Path) -> None:
    met = RunOutcome(run_directory=tmp_path, state="complete", limited_by="rate")
    assert numbers_text(met).endswith(" · limited by rate")
    slow = RunOutcome(
        run_directory=tmp_path, state="complete",
        limited_by="load generator load-sub: 98% of a core", is_load_generator_limit=True,
        acknowledged_us={"p50": 1500.0, "p99": 4000.0},
    )  # fmt: skip
    assert numbers_text(slow).endswith(
        " · acknowledged p50 1.50 ms, p99 4.00 ms · limited by load generator load-sub: "
        "98% of a core · no result of how fast brokers are"
    )


def test_a_sweep_lists_its_points_and_its_duration(call: Call) -> None:
    result = call(
        "--dry-run", "sweep", "demo", "--faults", "demo", "--instances", "3",
        *("--over", "publishers.rate=25/s,50/s", "--over", "faults.absorb-b1.for=1s,2s"),
    )  # fmt: skip
    assert result.status == 0, result.err
    assert "point rate=50/s,for=2s" in result.out
    assert "12 runs, about 16 min" in result.out


def test_a_comparison_lists_its_two_sides(call: Call) -> None:
    result = call(
        "--dry-run", "compare", "demo", "--faults", "demo", "--against", "protocol=best_effort",
        *("--against", "topology.tree.delta=2"),
    )  # fmt: skip
    assert result.status == 0, result.err
    assert "side as-given" in result.out
    assert "side protocol=best_effort,topology.tree.delta=2" in result.out
    assert "10 runs, about 13 min, and 107 s to check them" in result.out


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--over", "publishers.rate"], "write KEY=VALUE,VALUE,…"),
        (["--over", "publishers.rate=x"], "point rate=x: "),
        (["--over", "publishers.rate=1/s", "--rate", "2/s"], "'publishers.rate' is given twice"),
        (["--over", "seed=1", "--over", "seed=2"], "'seed' is given twice"),
        (["--over", "seed=1", "--rolling"], "no such option: --rolling"),
        (["--over", "seed=1,2", "--budget", "1min"], "for 2 runs, and the budget is 1min; --yes"),
        (
            ["--over", "seed=1", "--instances", "40", "--budget", "20min"],
            "for 40 runs, and the budget is 20min; --yes",
        ),
        (["--budget", "1min"], "name a sweep's file, or write --over KEY=A,B"),
        (["--bound", "latency_p99_ms=5"], "name a sweep's file, or write --over KEY=A,B"),
        ([], "name a sweep's file, or write --over KEY=A,B"),
        (
            ["--over", "simulated=false,true", "--faults", "slow-cpu"],
            "needs real processes; simulated are absorb",
        ),
        (["--over", "simulated=1,2"], "point simulated=1: simulated = 1: true or false"),
        (["--over", "seed=1,2", "--bound", "latency_p99_ms"], "write NUMBER=VALUE"),
        (["--over", "seed=1,2", "--bound", "p99=5"], "--bound: 'p99' is no number of a run; "),
        (
            ["--over", "seed=1", "--bound", "recovery_s=1", "--bound", "recovery_s=2"],
            "'recovery_s' is given twice",
        ),
        (["--over", "seed=1,2", "--bound", "recovery_s=-1"], "a bound is a number, at least 0"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused(call: Call, arguments: list[str], said: str) -> None:
    result = call("--dry-run" if "--budget" not in arguments else "-q", "sweep", "demo", *arguments)
    assert result.status == 2, result.err
    assert said in result.err


def test_a_bound_on_an_unknown_number_is_refused_by_its_option(call: Call) -> None:
    result = call("sweep", "demo", "--over", "seed=1,2", "--bound", "latency_p99=5", "--dry-run")
    assert result.status == 2
    said = "--bound: 'latency_p99' is no number of a run; did you mean 'latency_p99_ms'?"
    assert said in result.err


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--against", "protocol"], "--against protocol: write KEY=VALUE"),
        (["--against", "delta_tre"], "did you mean 'delta_tree'?"),
        (["--against", "revision=no-such"], "no commit of"),
        (
            ["--against", "revision=HEAD", "--against", "protocol=ges"],
            "a revision is compared with nothing",
        ),
        (["--against", "protocl=ges"], "did you mean 'protocol'?"),
        (["--against", "seed=2"], "runs whose seed differs are not comparable"),
        (["--against", "protocol=ges", "--protocol", "ges"], "'protocol' is given twice"),
        (["--against", "protocol=multi_proxy"], "point protocol=multi_proxy: "),
        (["--against", "topology=chain3"], "topology 'chain3' has no such broker"),
        (["--against", "protocol=best_effort", "--rolling"], "no such option: --rolling"),
    ],
)
def test_variants_that_cannot_be_compared_are_refused(
    call: Call, arguments: list[str], said: str
) -> None:
    result = call("--dry-run", "compare", "demo", *arguments)
    assert result.status == 2, result.err
    assert said in result.err


@pytest.mark.parametrize("verb", ["bench", "sweep", "limit", "compare"])
@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--set", "phases.drain"], "--set phases.drain: write KEY=VALUE"),
        (["--set", "phases.drian=1s"], "did you mean 'drain'?"),
    ],
)
def test_a_key_that_cannot_be_set_is_refused_by_every_verb(
    call: Call, verb: str, arguments: list[str], said: str
) -> None:
    more = {"sweep": ["--over", "seed=1,2"], "compare": ["--against", "protocol=gryphon"]}
    result = call("--dry-run", verb, "demo", *arguments, *more.get(verb, []))
    assert result.status == 2, result.err
    assert said in result.err


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--set", "faults.absorb-b1.for=1s"], "there are no --faults"),
        (["--set", "faults.absorb.for=1s", "--faults", "demo"], "did you mean 'absorb-b1'?"),
    ],
)
def test_a_key_of_a_step_needs_that_step(call: Call, arguments: list[str], said: str) -> None:
    result = call("--dry-run", "bench", "demo", *arguments)
    assert result.status == 2, result.err
    assert said in result.err


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--rate", "5/s"], "`limit` sets the rate; leave out --rate 5/s"),
        (["--faults", "demo"], "no such option: --faults"),
        (["--p99", "fast"], "--p99 fast: "),
        (["--from-rate", "max"], "--from-rate max: a number"),
        (["--from-rate", "9/s", "--to-rate", "8/s"], "--from-rate 9/s: more than --to-rate"),
    ],
)
def test_a_search_that_cannot_be_is_refused(call: Call, arguments: list[str], said: str) -> None:
    result = call("--dry-run", "limit", "demo", *arguments)
    assert result.status == 2, result.err
    assert said in result.err


def test_the_help_of_a_search_names_no_option_that_it_refuses(call: Call) -> None:
    assert " --rate" not in call("limit", "--help").out
    assert " --rate" in call("bench", "--help").out


def test_a_dry_run_of_a_search_prints_its_bounds(call: Call) -> None:
    result = call("--dry-run", "limit", "demo", "--p99", "20ms")
    assert result.status == 0, result.err
    assert "from 100/s to 1000000/s, p99 below 20ms" in result.out


def simulated(call: Call, *arguments: str) -> Any:
    """Run a simulation of chain3 with publications for two seconds."""
    return call("simulate", "run", "chain3-paced", "-d", "2s", "--rate", "20/s", "-j", *arguments)


def test_a_simulation_takes_the_options_of_a_workload(call: Call) -> None:
    more = simulated(call, "--publishers", "2", "--set", "phases.warmup=0s")
    fewer = simulated(call, "--set", "phases.warmup=0s")
    published = [each.document["counters"]["published"] for each in (fewer, more)]
    assert published[1] == 2 * published[0]
    other = simulated(call, "--topology", "chain3", "--protocol", "best_effort")
    assert other.document["protocol"] == "best_effort"
    for wrong, said in (
        (("--set", "phases.measur=1s"), "did you mean 'measure'"),
        (("--topology", "chan3"), "did you mean 'chain3'"),
        (("--records", "hist"), "--records hist: a simulated run records every delivery"),
        (("--skip-unsimulated",), "--skip-unsimulated requires --faults"),
    ):
        answer = simulated(call, *wrong)
        assert answer.status == 2
        assert said in answer.err


def test_steps_that_need_processes_are_left_out_on_request(call: Call, project: Path) -> None:
    steps = (
        ("slow", 'at = "500ms"', "slow-fsync", 'latency = "5ms"\nfor = "500ms"'),
        ("then", 'after = "slow"', "freeze", 'for = "200ms"'),
        ("alone", 'at = "1s"', "freeze", 'for = "300ms"'),
    )
    head = 'schema = "pubsubctl/faults/1"\nname = "mixed"\n'
    lines = [
        f'[[step]]\nid = "{name}"\n{when}\ndo = "{do}"\non = "b1"\n{rest}\n'
        for name, when, do, rest in steps
    ]
    Path("mixed.toml").write_text(head + "".join(lines))
    command = ("simulate", "run", "demo", "-d", "3s", "--rate", "10/s", "--faults", "mixed.toml")
    refused = call(*command)
    assert refused.status == 2
    assert "`simulate run --skip-unsimulated` leaves the step out" in refused.err
    skipped = call(*command, "--skip-unsimulated")
    assert "skipped: slow (slow-fsync) needs real processes" in skipped.err
    assert "skipped: then (freeze) follows slow" in skipped.err
    assert "freeze b1" in skipped.out
    Path("mixed.toml").write_text(head + "".join(lines[:2]))
    nothing = call(*command, "--skip-unsimulated")
    assert nothing.status == 2
    assert "--skip-unsimulated leaves no step of this schedule" in nothing.err
