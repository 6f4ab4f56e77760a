"""Tests of configurations of systems under test: valid ones, and errors of invalid ones."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from bench.spec.keys import Overrides
from bench.spec.validation import SpecError
from bench.systems.boundary import Server, System, WrongDriver, WrongSettings
from bench.systems.comparison import load_comparison
from bench.systems.configuration import (
    NotInstalled,
    configurations,
    is_configuration,
    load_configuration,
)
from bench.systems.experiment import experiment_on
from bench.systems.faults import aim_at, check_verbs, names_leader
from bench.systems.jetstream.driver import SYSTEM as JETSTREAM
from bench.systems.mosquitto.driver import SYSTEM as MOSQUITTO
from bench.systems.rabbitmq import port_mapper
from bench.systems.rabbitmq.driver import SYSTEM as RABBITMQ
from brokerd.errors import BrokerError
from fault_injection.schedule.schedule import read_schedule
from pubsubctl.doctor.health_check import check_system

TOY = Path(__file__).parents[2] / "foreign" / "toy_system"


def written(folder: Path, old: str = "", new: str = "", driver: tuple[str, str] = ("", "")) -> str:
    """Write the toy's configuration with a change, beside a copy of its driver; return the path."""
    text, code = (TOY / "toy.toml").read_text(), (TOY / "toy_driver.py").read_text()
    assert old in text, old
    assert driver[0] in code, driver
    (folder / "toy_driver.py").write_text(code.replace(*driver) if driver[0] else code)
    path = folder / "toy.toml"
    path.write_text(text.replace(old, new) if old else text)
    return str(path)


@pytest.mark.parametrize(
    "old, new, said",
    [
        ('durable = "yes"', 'durabel = "yes"', "unknown key 'durabel'; did you mean 'durable'?"),
        ('durable = "yes"', "durable = 3", "settings.durable = 3: expected a str"),
        ('["n1"]', '["n1", "n2"]', "the toy broker has 1 at most"),
        ('["n1"]', '["N 1"]', "servers[0] = 'N 1': no name"),
        ("toy_driver.py", "toy_drivr.py", "driver = 'toy_drivr.py': "),
        ("toy_driver.py", "bench.spec.values", "does not define SYSTEM"),
        ('"exactly-once"', '"sometimes"', "promise.delivery = 'sometimes'"),
        ('"exactly-once"', '"exactly-once"\nwindow = "soon"', "promise.window = 'soon'"),
        ("workload =", 'unsynced = "gone"\nworkload =', "unsynced = 'gone'"),
        ("system/1", "system/2", "schema = 'pubsubctl/system/2'"),
    ],
)
def test_a_slip_is_named_with_file_key_and_value(
    old: str, new: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(BrokerError) as error:
        load_configuration(written(tmp_path, old, new))
    assert said in str(error.value)
    assert str(tmp_path / "toy.toml") in str(error.value)
    assert getattr(error.value, "exit_status") == 2  # noqa: B009


def test_a_server_that_is_not_installed_is_named_with_its_package(tmp_path: Path) -> None:
    path = written(tmp_path, driver=("program=sys.executable", 'program="no-such-broker"'))
    with pytest.raises(NotInstalled, match=r"no-such-broker is not installed .*install python3"):
        load_configuration(path)


@pytest.mark.parametrize(
    "driver, said",
    [
        (("BROKER = Path", "BROKER = Pth"), "line 21: NameError: name 'Pth' is not defined"),
        (("    settings=", "    setings="), "TypeError: System.__init__() got an unexpected"),
        (('settings["durable"]', 'settings["d"]'), "toy_driver.py: start: line 28: KeyError: 'd'"),
        (("for server in servers", "for server in ()"), "0 starts for 1 servers"),
    ],
)
def test_a_mistake_in_a_driver_is_reported_with_its_line(
    driver: tuple[str, str], said: str, tmp_path: Path
) -> None:
    with pytest.raises(WrongDriver, match=re.escape(said)) as error:
        load_configuration(written(tmp_path, driver=driver))
    assert error.value.exit_status == 2


def test_a_server_without_a_version_is_named(tmp_path: Path) -> None:
    program = tmp_path / "brokerd"
    program.write_bytes(b"no program at all")
    program.chmod(0o755)
    with pytest.raises(NotInstalled, match=r"brokerd did not print its version: .*format"):
        load_configuration(
            written(tmp_path, driver=("program=sys.executable", f"program={str(program)!r}"))
        )


def test_a_client_library_that_is_not_installed_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, driver=("    client=ToyClient,", '    client_library="no-such",'
                                     "\n    client=ToyClient,"))  # fmt: skip
    with pytest.raises(NotInstalled, match="no-such is not installed"):
        load_configuration(path)


def test_a_version_without_a_required_setting_is_named() -> None:
    server = Server("n1", Path("n1"), 1, (2, 3))
    settings = {**JETSTREAM.settings, "sync_interval": "always"}
    with pytest.raises(WrongSettings, match=r"v2\.9\.10 always syncs every 2 minutes"):
        JETSTREAM.start("nats-server", [server], settings, "nats-server: v2.9.10")
    (start,) = JETSTREAM.start("nats-server", [server], settings, "nats-server: v2.10.1")
    assert "sync_interval: always" in start.files["nats.conf"]


def test_a_classic_queue_is_on_one_server_only() -> None:
    servers = [Server(f"n{n}", Path("n"), n, (n + 10, n + 20, n + 30)) for n in (1, 2, 3)]
    with pytest.raises(WrongSettings, match="only a quorum queue is on several"):
        RABBITMQ.start("server", servers, RABBITMQ.settings, "")
    starts = RABBITMQ.start("server", servers, {**RABBITMQ.settings, "queue": "quorum"}, "")
    for start in starts:
        assert "classic_config.nodes.3 = n3@localhost" in start.files["rabbitmq.conf"]


def test_a_port_mapper_of_a_server_lists_the_ports_of_its_peers() -> None:
    servers = [Server(f"n{n}", Path("n"), n, (n + 10, n + 20, n + 30)) for n in (1, 2, 3)]
    servers[0] = replace(servers[0], through={"n3": 99})
    starts = RABBITMQ.start("server", servers, {**RABBITMQ.settings, "queue": "quorum"}, "")
    mapped = [start.command[start.command.index(port_mapper.__file__) + 1 :] for start in starts]
    assert [(*command,) for command in mapped] == [
        ("11", "n2=22,n3=99", "server"),
        ("12", "n1=21,n3=23", "server"),
        ("13", "n1=21,n2=22", "server"),
    ]
    assert RABBITMQ.dialled == 2, "what others dial is behind the mapper's port"


def test_mosquittos_are_bridged_to_the_last() -> None:
    servers = [Server(f"n{n}", Path("n"), n) for n in (1, 2, 3)]
    starts = MOSQUITTO.start("mosquitto", servers, {**MOSQUITTO.settings, "qos": 2}, "")
    bridges = [
        [line for line in start.files["mosquitto.conf"].splitlines() if line.startswith("address")]
        for start in starts
    ]
    assert bridges == [["address 127.0.0.1:3"], ["address 127.0.0.1:3"], []]


@pytest.mark.parametrize(
    "system, key, value, said",
    [
        (JETSTREAM, "consumer", "poll", "'poll': expected one of push, pull"),
        (JETSTREAM, "acknowledge", "twice", "'twice': expected one of single, double"),
        (JETSTREAM, "replicas", 3, "3: more than there are servers, 1"),
        (MOSQUITTO, "qos", 7, "7: expected one of 0, 1, 2"),
        (RABBITMQ, "queue", "stream", "'stream': expected one of classic, quorum"),
        (RABBITMQ, "partitions", "heal", "'heal': expected one of ignore, pause_minority, auto"),
    ],
)
def test_a_value_that_a_system_has_not_is_named_before_anything_starts(
    system: System, key: str, value: str | int, said: str
) -> None:
    server = Server("n1", Path("n1"), 1, (2, 3, 4)[: system.ports - 1])
    with pytest.raises(WrongSettings, match=re.escape(f"settings.{key} = {said}")):
        system.start("server", [server], {**system.settings, key: value}, "")


def test_a_name_of_ours_that_is_none_gets_the_nearest() -> None:
    assert is_configuration("external/none")
    assert not is_configuration("topics")
    with pytest.raises(SpecError, match="no configuration called 'external/none'"):
        load_configuration("external/none")


@pytest.mark.parametrize("name", configurations())
def test_each_shipped_configuration_loads_or_names_the_missing_part(name: str) -> None:
    try:
        found = load_configuration(f"external/{name}")
    except (NotInstalled, WrongSettings) as error:
        pytest.skip(str(error))
    assert found.name == name
    experiment_on(found, found.workload, Overrides(), {}, calm=True)


def test_the_workload_is_judged_by_the_promise_and_its_brokers_are_servers(tmp_path: Path) -> None:
    found = load_configuration(written(tmp_path, '"exactly-once"', '"at-most-once"'))
    spec = experiment_on(found, "topics", Overrides(), {}, calm=True)
    assert spec.workload.guarantee.model_dump() == {
        "delivery": "at-most-once", "order": "publisher", "gapless": False,
    }  # fmt: skip
    assert {plan.broker for plan in spec.publisher_plans()} == {"n1"}


def test_filters_on_contents_are_refused_where_there_are_none(tmp_path: Path) -> None:
    found = load_configuration(written(tmp_path))
    said = (
        r"filter = .* has topics .* and no filters on contents; NATS JetStream, mosquitto, RabbitMQ"
    )
    with pytest.raises(SpecError, match=said):
        experiment_on(found, "demo", Overrides(), {}, calm=True)


def test_failover_is_refused_for_clients_of_other_systems(tmp_path: Path) -> None:
    found = load_configuration(written(tmp_path))
    said = r"publishers\[0\].failover: clients of other systems stay where they are"
    with pytest.raises(SpecError, match=said):
        experiment_on(found, "t22-anywhere", Overrides(), {}, calm=True)


def test_a_run_that_may_outlast_the_window_of_its_promise_is_refused(tmp_path: Path) -> None:
    promise = '"exactly-once"\nwindow = "20s"'
    found = load_configuration(written(tmp_path, '"exactly-once"', promise))
    assert found.promise.describe() == "exactly once within 20 s, in the order of each publisher"
    with pytest.raises(SpecError, match=r"promise.window = 20 s: a run of 41 s"):
        experiment_on(found, "topics", Overrides(), {}, calm=True)


COMPARISON = (Path(__file__).parents[3] / "bench/comparisons/all.toml").read_text()


def test_the_comparison_of_all_runs_names_them() -> None:
    found = load_comparison(Path(__file__).parents[3] / "bench/comparisons/all.toml")
    protocols = {entry.protocol for entry in found.entries} - {None}
    assert {"delta_tree", "gryphon", "durable", "multi_proxy"} <= protocols
    for entry in found.entries:
        if entry.system is not None:
            assert entry.system.removeprefix("external/") in configurations()
    assert [entry.name for entry in found.select(["jetstream3", "durable"]).entries] == [
        "durable", "jetstream3",
    ]  # fmt: skip
    (mine,) = found.select([]).with_systems(["mine/toy.toml"]).entries[len(found.entries) :]
    assert (mine.name, mine.system) == ("toy", "mine/toy.toml")
    with pytest.raises(SpecError, match="no entry 'jetstrem3'; did you mean 'jetstream3'"):
        found.select(["jetstrem3"])


@pytest.mark.parametrize(
    "old, new, said",
    [
        ('protocol = "gryphon"', "", "needs either a protocol"),
        ('protocol = "gryphon"', 'protocl = "gryphon"', "unknown key 'protocl'"),
        ('name = "gryphon"', 'name = "delta_tree"', "entry[1].name = 'delta_tree': is there twice"),
        (
            'protocol = "durable"',
            'system = "a.toml"\ntopology = "b"',
            "use topology with our protocols only",
        ),
    ],
)
def test_a_slip_in_a_comparison_is_named(old: str, new: str, said: str, tmp_path: Path) -> None:
    assert old in COMPARISON
    path = tmp_path / "mine.toml"
    path.write_text(COMPARISON.replace(old, new, 1))
    with pytest.raises(SpecError) as error:
        load_comparison(path)
    assert said in str(error.value)
    assert str(path) in str(error.value)


def test_a_fault_verb_of_our_brokers_is_refused_for_other_systems() -> None:
    step = {"at": "1s", "do": "absorb", "on": "n1", "for": "1s", "id": "a"}
    document = {"schema": "pubsubctl/faults/1", "name": "t", "step": [step]}
    with pytest.raises(SpecError, match="step a: do = 'absorb' is nothing that can be done"):
        check_verbs(read_schedule(document, "here"))


def test_the_target_leader_is_the_leader_at_the_start_of_the_schedule() -> None:
    steps = [
        {"at": "1s", "do": "kill", "on": on, "id": f"kill-{number}"}
        for number, on in enumerate(("leader", "n2"))
    ]
    fetch_json = read_schedule({"schema": "pubsubctl/faults/1", "name": "t", "step": steps}, "here")
    assert names_leader(fetch_json)
    found = aim_at(fetch_json, "n3")
    assert [step.on for step in found.steps] == ["n3", "n2"]
    assert not names_leader(found)


@pytest.mark.parametrize(
    "driver, severity, said, remedy",
    [
        (("", ""), "ok", "the toy broker: Python", ""),
        (
            ("program=sys.executable", 'program="no-such-broker"'),
            "fail", "no-such-broker is not installed", "Debian: apt-get install python3",
        ),
        (
            ("    return [\n        Start", '    raise WrongSettings("not durable")\n'
             "    return [\n        Start"),
            "fail", "not durable", "",
        ),
    ],
)  # fmt: skip
def test_doctor_names_the_missing_part_and_its_remedy(
    driver: tuple[str, str], severity: str, said: str, remedy: str, tmp_path: Path
) -> None:
    path = written(tmp_path, driver=driver)
    code = (tmp_path / "toy_driver.py").read_text()
    code = code.replace("    System,\n", "    System,\n    WrongSettings,\n")
    (tmp_path / "toy_driver.py").write_text(code)
    (finding,) = check_system(path)
    assert (finding.severity, finding.remedy) == (severity, remedy)
    assert said in finding.text
