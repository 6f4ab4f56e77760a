"""What a shell offers when one presses Tab: names of files, runs and brokers that are there."""

from pathlib import Path

from pubsubctl.project import Project


def workloads(incomplete: str) -> list[str]:
    """Bare names of workloads."""
    return _beginning(Project(Path.cwd()).names("workload"), incomplete)


def topologies(incomplete: str) -> list[str]:
    """Bare names of topologies."""
    return _beginning(Project(Path.cwd()).names("topology"), incomplete)


def schedules(incomplete: str) -> list[str]:
    """Bare names of fault schedules."""
    return _beginning(Project(Path.cwd()).names("schedule"), incomplete)


def faults(incomplete: str) -> list[str]:
    """What `inject` takes first: a verb or a schedule."""
    from fault_injection.verbs import VERBS

    return _beginning([*VERBS, *Project(Path.cwd()).names("schedule")], incomplete)


def runs(incomplete: str) -> list[str]:
    """`latest` and run ids, the newest first."""
    folder = Project(Path.cwd()).results_folder(None)
    found = sorted((path.parent.name for path in folder.glob("*/2*/manifest.json")), reverse=True)
    return _beginning(["latest", *found], incomplete)


def hosts(incomplete: str) -> list[str]:
    """Hosts of the inventory that holds."""
    from pubsubctl.inventory import load_inventory

    inventory = load_inventory(Project(Path.cwd()).inventory_file(None))
    return _beginning([host.name for host in inventory.hosts], incomplete)


def brokers(incomplete: str) -> list[str]:
    """Brokers of what is deployed, as far as this machine knows without asking anybody."""
    return _beginning(_deployed_brokers(), incomplete)


def logged(incomplete: str) -> list[str]:
    """What has a log: brokers of what is deployed, and the agents."""
    return _beginning(["agent", *_deployed_brokers()], incomplete)


def _deployed_brokers() -> list[str]:
    return []


def figures(incomplete: str) -> list[str]:
    """Names of figures."""
    from results.figures import FIGURES

    return _beginning(sorted(FIGURES), incomplete)


def _beginning(known: list[str], incomplete: str) -> list[str]:
    return [name for name in known if name.startswith(incomplete)]
