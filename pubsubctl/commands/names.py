"""Shell completions: names of files, hosts, runs and brokers.

Completion uses no network, and an unreadable source offers nothing.
"""

import functools
import json
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import typer

from pubsubctl.errors import PubsubctlError
from pubsubctl.project import Kind, Project, xdg_folder

Names = Callable[[typer.Context, str], list[str]]


def _complete(find: Callable[[typer.Context, str], Iterable[str]]) -> Names:
    """Return a completion of the typed text from a function that may fail."""

    @functools.wraps(find)
    def names(context: typer.Context, incomplete: str) -> list[str]:
        try:
            found = find(context, incomplete)
            return [name for name in dict.fromkeys(found) if name.startswith(incomplete)]
        except (PubsubctlError, OSError, ValueError, KeyError, TypeError):
            return []  # half a command line is no place for an error message

    return names


@_complete
def workloads(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Bare names of workloads."""
    return _files("workload")


@_complete
def sweeps(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Bare names of sweeps and workloads."""
    return [*_files("sweep"), *_files("workload")]


@_complete
def experiments(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Names of experiments."""
    from pubsubctl.runs.paper_experiments import experiment_names

    return [*experiment_names()]


@_complete
def topologies(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Bare names of topologies."""
    return _files("topology")


@_complete
def schedules(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Bare names of fault schedules."""
    return _files("schedule")


@_complete
def comparisons(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Bare names of comparisons."""
    return _files("comparison")


@_complete
def inventories(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Bare names of inventories."""
    return _files("inventory")


@_complete
def faults(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Return verbs and schedules; behind a verb, the targets of that verb."""
    from brokerd.model.fault_verbs import CLIENT_VERBS, VERB_TABLE

    typed = list(context.params.get("what") or ())
    if not typed:
        by_hand = [verb for verb in VERB_TABLE if verb not in CLIENT_VERBS]
        return [*by_hand, *_files("schedule")]
    if len(typed) > 1 or typed[0] not in VERB_TABLE:
        return []
    on = VERB_TABLE[typed[0]].on
    found: list[str] = []
    if "broker" in on:
        found += _brokers(context)
    if "link" in on:
        found += _links(context)
    if "machine" in on:
        found += _hosts(context)
    return found


@_complete
def runs(context: typer.Context, incomplete: str) -> Iterable[str]:
    """`latest` and run ids, the newest first."""
    folder = Project(Path.cwd()).results_folder(None)
    found = (path.parent.name for path in folder.glob("*/2*/manifest.json"))
    return ["latest", *sorted(found, reverse=True)]


@_complete
def sides(context: typer.Context, incomplete: str) -> Iterable[str]:
    """`latest`, run ids, and bare names of workloads."""
    return [*runs(context, ""), *_files("workload")]


@_complete
def hosts(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Hosts of the inventory that holds."""
    return _hosts(context)


@_complete
def selectors(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Return the selectors of --limit: hosts and groups, plain and with `!`."""
    from pubsubctl.inventory.inventory import load_inventory

    inventory = load_inventory(_inventory_file(context))
    groups = {group for host in inventory.hosts for group in host.groups}
    found = [*(host.name for host in inventory.hosts), *sorted(groups)]
    return [f"!{name}" for name in found] if incomplete.startswith("!") else found


@_complete
def brokers(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Brokers of what is deployed on this machine, or else of the topologies there are."""
    return _brokers(context)


@_complete
def logged_processes(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Return the processes with a log: brokers and agents."""
    return ["agent", *_brokers(context)]


@_complete
def figures(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Names of figures."""
    from results.figures.catalogue import FIGURES

    return sorted(FIGURES)


@_complete
def protocols(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Names of protocols."""
    from brokerd.protocols.registry import DEFINITIONS

    return [*DEFINITIONS]


SETTABLE_KEYS: Final = (
    "seed", "calm", "guarantee.delivery", "guarantee.order", "guarantee.gapless",
    "bars.deliveries_per_pair_min", "phases.warmup", "phases.measure", "phases.drain",
    "phases.drain_bound", "load.publisher_processes", "load.subscriber_processes",
    "load.records", "churn.disconnected", "churn.every", "churn.pattern", "expectations",
    "attributes", "topic", "publishers.at", "publishers.count", "publishers.rate",
    "publishers.size", "publishers.arrivals", "publishers.window", "publishers.batch",
    "publishers.failover", "subscribers.at", "subscribers.count", "subscribers.filter",
    "subscribers.subscribes", "subscribers.own_process", "subscribers.acknowledge",
    "subscribers.failover",
    "topology.tree.delta", "topology.cells.bundles", "topology.cells.members",
    "topology.cells.links", "topology.hierarchy.addresses", "topology.hierarchy.storages",
    "topology.hierarchy.links", "topology.hierarchy.max_links", "topology.hierarchy.changes",
    "topology.bipartite.proxies", "topology.bipartite.servers", "topology.bipartite.edges",
    "topology.session.heartbeat", "topology.session.suspicion",
    "topology.session.connect_timeout", "topology.session.slow_after",
)  # fmt: skip
"""Keys for --set, as the models of the files have them: to import these takes too long here."""


@_complete
def settable_keys(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Return the keys of --set, with a final `=`."""
    return [f"{key}=" for key in SETTABLE_KEYS]


@_complete
def swept_keys(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Return the keys of --over, with a final `=`."""
    whole = ("protocol", "topology", "faults", "simulated")
    return [f"{key}=" for key in (*whole, *SETTABLE_KEYS)]


@_complete
def claims(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Names of claims."""
    project = Project(Path.cwd())
    paths = [project.find("claims", name) for name in project.names("claims")]
    found = [tomllib.loads(path.read_text("utf-8")) for path in paths]
    return [each["name"] for document in found for each in document["claims"]]


def choices(*words: str) -> Names:
    """Return a completion of fixed words."""

    @_complete
    def fixed(context: typer.Context, incomplete: str) -> Iterable[str]:
        return words

    return fixed


@_complete
def topics(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Return the topics of the manual."""
    from pubsubctl.console.invocation import topic_files

    return list(topic_files())


def _files(kind: Kind) -> list[str]:
    return Project(Path.cwd()).names(kind)


def _inventory_file(context: typer.Context) -> Path:
    given = context.find_root().params.get("inventory_file")
    return Project(Path.cwd()).inventory_file(given)


def _hosts(context: typer.Context) -> list[str]:
    from pubsubctl.inventory.inventory import load_inventory

    return [host.name for host in load_inventory(_inventory_file(context)).hosts]


def _brokers(context: typer.Context) -> list[str]:
    return [name for about in _topologies(context) for name in about.get("brokers", ())]


def _links(context: typer.Context) -> list[str]:
    return [f"{a}-{b}" for about in _topologies(context) for a, b in about.get("links", ())]


def _topologies(context: typer.Context) -> list[dict[str, Any]]:
    """Return the deployed topologies of this machine, or all topologies without one."""
    name = tomllib.loads(_inventory_file(context).read_text(encoding="utf-8-sig"))["name"]
    for record in sorted((xdg_folder("state") / str(name)).glob("*/deployment.json")):
        return [json.loads(record.read_text(encoding="utf-8"))["topology"]]
    project = Project(Path.cwd())
    paths = [project.find("topology", bare) for bare in project.names("topology")]
    return [tomllib.loads(path.read_text(encoding="utf-8-sig")) for path in paths]
