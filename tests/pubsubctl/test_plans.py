"""Stories about plans: the desired and the observed state of hosts determine the steps.

Each folder of plans/ is one case: inventory, topology, observed state, and the expected steps, or
the sentences of the refusal. Placement and plan are pure, so a case has the same result on every
machine.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from brokerd.overlay.generate import hierarchy
from brokerd.overlay.topology import JoinedBroker, Topology
from pubsubctl.deployment.placement import Placement, place
from pubsubctl.deployment.plan import DesiredState, ObservedState, Stray, deploy_plan, down_plan
from pubsubctl.deployment.topologies import load_topology
from pubsubctl.errors import PreflightFailed, PubsubctlError, UserError
from pubsubctl.inventory.inventory import load_inventory

CASES = sorted(path.parent for path in Path(__file__).parent.glob("plans/*/plan.txt"))
CORES = [0, 1, 2, 3]


def wanted_in(case: Path, protocol: str) -> DesiredState:
    inventory = load_inventory(case / "inventory.toml")
    topology = load_topology(case / "topology.toml")
    placement = place(topology, inventory.hosts, {host.name: CORES for host in inventory.hosts})
    return DesiredState(topology, protocol, "0123456789abcdef", placement)


def found_in(case: Path, wanted: DesiredState) -> list[ObservedState]:
    """Return the observed states: observed.json, where "same" stands for the desired record."""
    path = case / "observed.json"
    rows = json.loads(path.read_text()) if path.exists() else {}
    hosts = [host.name for host in load_inventory(case / "inventory.toml").hosts]
    record = {
        "deployment_id": "d1",
        "protocol": wanted.protocol,
        "topology": wanted.topology.to_mapping(),
        "digest": wanted.digest,
        "placement": wanted.placement.to_mapping(),
    }
    found = []
    for host in hosts:
        row = dict(rows.get(host, {}))
        if "deployment" in row:
            changes = {} if row["deployment"] == "same" else row["deployment"]
            row["deployment"] = {**record, **changes}
        row["strays"] = tuple(
            Stray(pid, name, (port,)) for pid, name, port in row.get("strays", ())
        )
        found.append(ObservedState(host=host, **row))
    return found


def answer(case: Path) -> str:
    try:
        wanted = wanted_in(case, "delta_tree")
        return deploy_plan(wanted, found_in(case, wanted)).text() + "\n"
    except PubsubctlError as error:
        return f"exit {error.exit_status}\n{error}\n".replace(f"{case}/", "")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_plan(case: Path) -> None:
    assert answer(case) == (case / "plan.txt").read_text()


def test_there_are_cases() -> None:
    assert len(CASES) >= 8


def test_identical_inputs_produce_byte_identical_plans() -> None:
    case = Path(__file__).parent / "plans" / "first"
    wanted = wanted_in(case, "delta_tree")
    plans = [deploy_plan(wanted, found_in(case, wanted)).to_mapping() for _ in range(2)]
    assert json.dumps(plans[0]) == json.dumps(plans[1])
    assert Placement.from_mapping(wanted.placement.to_mapping()) == wanted.placement


@pytest.mark.parametrize("name, who", [("joining", "d would join"), ("leaving", "d would leave")])
def test_joins_and_leaves_that_a_protocol_lacks_are_refused_before_planning(
    name: str, who: str
) -> None:
    case = Path(__file__).parent / "plans" / name
    wanted = wanted_in(case, "best_effort")
    with pytest.raises(PreflightFailed, match=f"^{who}: with best_effort .*`pubsubctl down`"):
        deploy_plan(wanted, found_in(case, wanted))


def running_hierarchy(after: Topology) -> tuple[DesiredState, list[ObservedState]]:
    """Return the desired state of a hierarchy, and the observed state with four brokers."""
    case = Path(__file__).parent / "plans" / "first"
    before = hierarchy(4, 2)
    inventory = load_inventory(case / "inventory.toml")
    cores = {host.name: CORES for host in inventory.hosts}
    placement = place(before, inventory.hosts, cores)
    running = DesiredState(before, "ges_reliable", "0123456789abcdef", placement)
    wanted = replace(running, topology=after, placement=place(after, inventory.hosts, cores))
    record = {
        "deployment_id": "d1",
        "protocol": "ges_reliable",
        "topology": before.to_mapping(),
        "digest": running.digest,
        "placement": placement.to_mapping(),
    }
    found = [
        ObservedState(
            host,
            agent="d1",
            deployment=record,
            processes={row.broker: "running" for row in placement.brokers if row.host == host},
        )
        for host in placement.hosts
    ]
    return wanted, found


def test_brokers_of_a_hierarchy_join_and_leave_while_the_others_run() -> None:
    after = hierarchy(4, 2).with_joined(JoinedBroker("n1", "b2", "", "", ("b4",)), "four.toml")
    wanted, found = running_hierarchy(after.without("b4", "four.toml"))
    for protocol in ("ges_reliable", "ges"):
        for row in found:
            row.deployment["protocol"] = protocol
        steps = deploy_plan(replace(wanted, protocol=protocol), found).steps
        changes = [str(step) for step in steps if step.verb != "change-record"]
        assert [line.split(" 127")[0] for line in changes] == [
            "stop-broker h2 b4 leaves",
            "change-topology h1 b1",
            "change-topology h2 b2",
            "change-topology h1 b3",
            "join h1 n1",
            "start-broker h1 n1",
            "await-ready all 4 brokers digest 01234567",
        ]


def test_running_brokers_of_a_hierarchy_become_storages() -> None:
    wanted, found = running_hierarchy(hierarchy(4, 2).with_role("b2", "0", "four.toml"))
    verbs = [step.verb for step in deploy_plan(wanted, found).steps]
    changes = ["change-record"] * len(found) + ["change-topology"] * 4
    assert verbs == [*changes, "await-ready"]
    for row in found:
        row.deployment["protocol"] = "ges"
    with pytest.raises(PreflightFailed, match="with ges a running deployment keeps"):
        deploy_plan(replace(wanted, protocol="ges"), found)


def test_down_stops_agents_and_strays_and_removes_files_where_there_are_any() -> None:
    found = [
        ObservedState("a", agent="d1", processes={"b1": "running", "b2": "exited"}, files=True),
        ObservedState("b", strays=(Stray(12, "b3"),), files=True),
        ObservedState("c"),
    ]
    assert down_plan(found, purge=False).text().splitlines() == [
        "stop-agent a deployment d1 1 live",
        "remove a state, sockets and logs",
        "stop-strays b pid 12 (b3)",
        "remove b state, sockets and logs",
    ]
    assert down_plan([ObservedState("c")], purge=True).text() == "nothing to do"


def test_more_brokers_than_ports_or_cores_are_refused(tmp_path: Path) -> None:
    case = Path(__file__).parent / "plans" / "first"
    topology = load_topology(case / "topology.toml")
    text = (case / "inventory.toml").read_text()
    (tmp_path / "i.toml").write_text(text.replace("23500-23599", "23500-23501"))
    hosts = load_inventory(tmp_path / "i.toml").hosts
    with pytest.raises(UserError, match="host h1: ports = 23500-23500: 1 port, but topology"):
        place(topology, hosts, {})
    (tmp_path / "i.toml").write_text(text + 'cores = "own"\n')
    hosts = load_inventory(tmp_path / "i.toml").hosts
    with pytest.raises(PreflightFailed, match="there are 2 cores for 3 brokers"):
        place(topology, hosts, {host.name: [0, 1] for host in hosts})
