"""`bench`: run a workload on brokers, with or without faults, and judge the run."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pubsubctl.commands import names
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import Invocation, invocation
from pubsubctl.errors import UserError

if TYPE_CHECKING:
    from bench.spec.spec import ExperimentSpec
    from fault_injection.schedule.schedule import FaultSchedule


def bench(
    context: typer.Context,
    workload: Annotated[
        str,
        typer.Argument(
            help="A path, the bare name of a file in bench/workloads or bench/sweeps, a figure "
            "with an experiment on brokers (gd02.fig6), or a broker of others (external/NAME).",
            autocompletion=names.workloads,
        ),
    ],
    faults: Annotated[
        str | None,
        typer.Option(
            "--faults",
            metavar="SCHEDULE",
            help="What to break during the run.",
            autocompletion=names.schedules,
        ),
    ] = None,
    protocol: Annotated[
        str | None, typer.Option("--protocol", help="This one, not the workload's.")
    ] = None,
    topology: Annotated[
        str | None, typer.Option("--topology", help="This one, not the workload's.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="What is random is drawn from it.")
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option("--rate", "-r", help="How often each publisher publishes: 25/s, or max."),
    ] = None,
    duration: Annotated[
        str | None, typer.Option("--duration", "-d", help="How long to measure: 10s.")
    ] = None,
    size: Annotated[
        str | None, typer.Option("--size", "-s", help="How large each payload is: 100B, 4KiB.")
    ] = None,
    publishers: Annotated[
        int | None, typer.Option("--publishers", "-p", help="How many at each of their brokers.")
    ] = None,
    subscribers: Annotated[
        int | None, typer.Option("--subscribers", "-c", help="How many at each of their brokers.")
    ] = None,
    warmup: Annotated[
        str | None, typer.Option("--warmup", help="How long to load before measuring: 2s.")
    ] = None,
    no_churn: Annotated[
        bool, typer.Option("--no-churn", help="Disconnect nobody, whatever the workload says.")
    ] = False,
    records: Annotated[
        str | None,
        typer.Option(
            "--records",
            metavar="full|sampled|hist",
            help="How much load generators write down: a row of each delivery, or who got what "
            "in stretches, with the time of one in 16, or 256. Verdicts are as exact.",
        ),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any key of the workload (phases.drain=5s, publishers.size=4KiB), of its topology "
            "(topology.tree.delta=2), or of a step of --faults (faults.STEP.for=3s); repeatable.",
        ),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep",
            metavar="KEY=VALUE,…",
            help="Run it with each of these values of a key, as in --set, or of protocol, "
            "topology or faults; with simulated=false,true also on simulated brokers; with "
            "several, with every combination.",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option("--budget", help="With --sweep: begin nothing that ends later: 30min."),
    ] = None,
    bound: Annotated[
        list[str] | None,
        typer.Option(
            "--bound",
            metavar="NUMBER=VALUE",
            help="With a sweep: what the mean of a point is not to pass (latency_p99_ms=500); "
            "where it does, the figure shows the danger zone. Repeatable.",
        ),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            "--against",
            metavar="REVISION|TOPOLOGY|PROTOCOL|KEY=VALUE",
            help="Run it in turn with another protocol, topology or topology.KEY, or as this "
            "program was at another git revision (5 times each, or --instances), and say by how "
            "much the two differ; repeatable but for a revision.",
        ),
    ] = None,
    highest: Annotated[
        bool,
        typer.Option(
            "--find-max",
            help="Search for the highest rate of each publisher at which everything owed comes, "
            "nothing piles up, and p99 keeps its bound.",
        ),
    ] = False,
    p99: Annotated[
        str | None, typer.Option("--p99", help="With --find-max: what p99 may be: 50ms.")
    ] = None,
    from_rate: Annotated[
        str | None, typer.Option("--from-rate", help="With --find-max: try this first: 100/s.")
    ] = None,
    to_rate: Annotated[
        str | None, typer.Option("--to-rate", help="With --find-max: try none beyond: 1M/s.")
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="K=V", help="Written into the manifest; repeatable."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output-dir", "-o", help="Where runs go, if not to results/runs."),
    ] = None,
    rolling: Annotated[
        bool,
        typer.Option("--rolling", help="Replace all brokers during the run, as an upgrade would."),
    ] = False,
    max_unavailable: Annotated[
        int,
        typer.Option(
            "--max-unavailable", metavar="N", min=1, help="With --rolling: how many at a time."
        ),
    ] = 1,
    role: Annotated[
        list[str] | None,
        typer.Option(
            "--role",
            metavar="BROKER=ROLE",
            help="During the run this broker comes to be a storage, as in b11=1, or b11=retired; "
            "repeatable, one after the other, and all brokers must be up.",
        ),
    ] = None,
    instances: Annotated[
        int | None,
        typer.Option(
            "--instances",
            metavar="N",
            min=1,
            help="Run it N times; goes on where it was interrupted. Every number gets its spread.",
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Judge the run with Spark.")
    ] = True,
    no_teardown: Annotated[
        bool, typer.Option("--no-teardown", help="Leave running what was deployed for the run.")
    ] = False,
) -> Result:
    """Load brokers, break them, judge the run.

    What is deployed is used when it is what the workload wants; when nothing is, brokers are
    deployed for the run and taken down after it. The last line is the folder of the run.
    """
    from bench.papers.figure_experiments import figures as simulated_figures
    from bench.papers.figure_experiments import measured_figures
    from bench.spec.deployed_experiment import is_deployed_experiment
    from bench.spec.overrides import Overrides
    from bench.systems.configuration import is_configuration

    call = invocation(context)
    overrides = Overrides(
        protocol=protocol,
        topology=topology,
        seed=seed,
        rate=rate,
        size=size,
        publishers=publishers,
        subscribers=subscribers,
        warmup=warmup,
        measure=duration,
        churn=False if no_churn else None,
        records=records,
        keys=settings_of(setting or []) or None,
    )
    others = (
        *(highest, against, sweep, rolling, instances is not None, budget is not None),
        *(is_sweep_name(call, workload), is_configuration(workload)),
        *(is_deployed_experiment(workload), workload in measured_figures()),
    )
    if role and any(others):
        raise UserError(f"{workload}: --role {role[0]} goes with one run of brokers of ours")
    if highest:
        from pubsubctl.running.finding import Asked as Wanted
        from pubsubctl.running.finding import find_max

        typed = (
            *(rate, faults, sweep, against, budget, instances, label),
            *(rolling, no_teardown, not check),
        )
        if any(typed):
            raise UserError(f"{workload}: --find-max sets the rate, and runs without faults")
        return find_max(call, Wanted(workload, p99, from_rate, to_rate), overrides, output)
    if bound and (against or highest or not (sweep or is_sweep_name(call, workload))):
        raise UserError(f"--bound {bound[0]}: goes with --sweep, or with a sweep's file")
    for option, value in (("--p99", p99), ("--from-rate", from_rate), ("--to-rate", to_rate)):
        if value is not None:
            raise UserError(f"{option} {value}: goes with --find-max")
    if against:
        from pubsubctl.running.against import Asked as Sides
        from pubsubctl.running.against import run_against

        if sweep or budget is not None or rolling or no_teardown or not check or label:
            text = "--sweep, --budget, --rolling, --no-teardown, --no-check and --label"
            raise UserError(f"{workload}: {text} do not go with --against")
        return run_against(
            call, Sides(workload, tuple(against), faults, instances), overrides, output
        )
    if sweep or budget is not None or is_sweep_name(call, workload):
        from pubsubctl.running.sweeping import Asked, run_sweep

        if rolling or no_teardown or not check or label:
            text = "--rolling, --no-teardown, --no-check and --label do not go with a sweep"
            raise UserError(f"{workload}: {text}")
        asked = Asked(workload, tuple(sweep or ()), faults, budget, instances, tuple(bound or ()))
        return run_sweep(call, asked, overrides, output)
    if is_configuration(workload):
        from pubsubctl.running.systems import bench_system

        if rolling or instances is not None or no_teardown:
            raise UserError(f"{workload}: --rolling, --instances and --no-teardown are of ours")
        labels = _labels(label or [])
        return bench_system(call, workload, overrides, faults, labels, output, check=check)
    if is_deployed_experiment(workload):
        return _of_figure(call, workload, overrides, faults, instances, output)
    if workload in measured_figures():
        return _measured_here(call, workload, output)
    if workload in simulated_figures():
        raise UserError(f"{workload} needs no real brokers: `pubsubctl simulate {workload}`")
    from pubsubctl.running.plan import plan_experiment

    spec, schedule = plan_experiment(call, workload, overrides, faults, _labels(label or []))
    late = [plan.name for plan in spec.subscriber_plans() if plan.subscribes_ns is not None]
    if late:
        raise UserError(
            f"{spec.source}: {late[0]} subscribes while publications flow, which only simulated "
            f"brokers do; `pubsubctl simulate {workload} --record`"
        )
    from pubsubctl.deploying.roles import read_roles

    roles = read_roles(role or (), spec.topology, spec.protocol)
    if roles:
        spec = replace(spec, overrides={**spec.overrides, "roles": role})
    if call.dry_run:
        return _planned(call, spec, schedule)
    if instances is not None:
        from bench.spec.deployed_experiment import Point
        from pubsubctl.running.series import Design, run_series

        point, design = Point(spec.protocol, spec), Design(instances=instances)
        return run_series(call, spec.name, [(point, schedule)], design, results=output)
    from pubsubctl.running.experiment import run_and_judge

    return run_and_judge(
        call,
        spec,
        schedule,
        results=output,
        check=check,
        teardown=not no_teardown,
        rolling=max_unavailable if rolling else 0,
        roles=roles,
    )


def _measured_here(call: Invocation, name: str, results: Path | None) -> Result:
    """Run the experiment of a figure without brokers and hosts, and draw the figure."""
    from bench.papers.figure_experiments import load_figure_experiment, run_figure_experiment
    from results.checker.spark import spark_session
    from results.figures.by_name import draw

    experiment = load_figure_experiment(name)
    with call.console.progress() as progress:
        run = run_figure_experiment(experiment, call.project.results_folder(results), progress, 1)
        progress.phase("starting Spark")
        with spark_session("pubsubctl bench", call.master()) as spark:
            progress.phase(f"drawing {experiment.figure}")
            files = [str(each) for each in draw(experiment.figure, spark, run)]
    document = {
        "schema": "pubsubctl/bench-figure/1",
        "figure": experiment.figure,
        "experiment": experiment.name,
        "files": files,
        "run_directory": str(run),
    }
    return Result(document=document, text="\n".join([*files, str(run)]))


def _of_figure(
    call: Invocation,
    name: str,
    overrides: Any,
    faults: str | None,
    instances: int | None,
    results: Path | None,
) -> Result:
    """Run the experiment of a figure, with all points."""
    from bench.spec.deployed_experiment import load_deployed_experiment, points_of
    from pubsubctl.running.plan import plan_faults
    from pubsubctl.running.series import Design, run_series

    experiment = load_deployed_experiment(name)
    if faults is not None:
        raise UserError(f"--faults {faults}: {experiment.figure} says itself what is broken")
    if overrides.protocol is not None:
        if overrides.protocol not in experiment.protocols:
            raise UserError(
                f"--protocol = {overrides.protocol!r}: {experiment.figure} is of "
                f"{', '.join(experiment.protocols)}"
            )
        experiment = experiment.model_copy(update={"protocols": [overrides.protocol]})
    points = [
        (point, plan_faults(call, point.spec, experiment.faults or None))
        for point in points_of(experiment, overrides)
    ]
    if call.dry_run:
        return _planned(call, points[0][0].spec, points[0][1])
    times = experiment.instances if instances is None else instances
    figures = [experiment.figure, *experiment.further_figures]
    design = Design(instances=times, figures=figures)
    return run_series(call, experiment.name, points, design, results=results)


def is_sweep_name(call: Invocation, name: str) -> bool:
    """Return True if a name on the command line is a sweep: a file, or a name in bench/sweeps."""
    from bench.spec.sweep import is_sweep

    if "/" not in name and not name.endswith(".toml"):
        return name in call.project.names("sweep")
    return is_sweep(Path(name))


def settings_of(texts: list[str]) -> dict[str, Any]:
    """Return the values of --set by key.

    Raises:
        UserError: a text is not KEY=VALUE, or a key is repeated.
    """
    from bench.spec.keys import value_of

    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UserError(f"--set {text}: write KEY=VALUE")
        if key in found:
            raise UserError(f"--set {text}: {key} has a value already")
        found[key] = value_of(value)
    return found


def _labels(texts: list[str]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UserError(f"--label {text}: write KEY=VALUE")
        labels[key] = value
    return labels


def _planned(call: Invocation, spec: "ExperimentSpec", schedule: "FaultSchedule | None") -> Result:
    """Return the plan of a dry run, after an inspection of the hosts."""
    import trio

    from fault_injection.schedule.plan import expand
    from pubsubctl.deploying.deploy import planned, wanted_deployment
    from pubsubctl.deploying.plan import Plan
    from pubsubctl.hosts.hosts import Lab, reached

    inventory = call.inventory()
    lab = Lab.of(inventory, call.hosts(inventory), call.forks)

    async def look() -> Plan:
        return await planned(lab, await wanted_deployment(lab, spec.topology, spec.protocol))

    plan = trio.run(reached, lab, look)
    steps = [str(step) for step in expand(schedule)] if schedule is not None else []
    clients = len(spec.publisher_plans()), len(spec.subscriber_plans())
    phases = spec.workload.phases
    load = (
        f"{clients[0]} publishers, {clients[1]} subscribers, warm-up {phases.warmup / 1e9:g} s, "
        f"measure {phases.measure / 1e9:g} s, drain up to {phases.drain / 1e9:g} s"
    )
    return Result(
        document={
            "schema": "pubsubctl/bench-plan/1",
            "deploy": plan.to_mapping()["steps"],
            "workload": spec.workload_mapping(),
            "faults": steps,
        },
        text="\n".join([plan.text(), f"load {load}", *(f"fault {step}" for step in steps)]),
    )
