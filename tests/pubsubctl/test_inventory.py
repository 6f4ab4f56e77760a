"""Stories about inventories: resolved values, and refusals before any process starts."""

import tomllib
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from brokerd.text import expand_range
from pubsubctl.errors import UserError
from pubsubctl.inventory.inventory import Gateway, Inventory, SshSettings, load_inventory
from pubsubctl.inventory.inventory_model import format_ranges
from pubsubctl.inventory.inventory_schema import (
    MOST_IDENTITIES,
    InventoryFile,
    SshEntry,
    json_schema,
)
from pubsubctl.inventory.typed_values import NotPlain, read_typed

HEAD = 'schema = "pubsubctl/inventory/1"\nname = "lab"\n'


def load(folder: Path, text: str) -> Inventory:
    path = folder / "lab.toml"
    path.write_text(HEAD + text)
    return load_inventory(path)


def problems(folder: Path, text: str) -> list[str]:
    """Return the problems of an inventory, without the name of its folder."""
    with pytest.raises(UserError) as caught:
        load(folder, text)
    assert caught.value.exit_status == 2
    return [problem.replace(f"{folder}/", "") for problem in caught.value.problems]


def test_a_range_becomes_single_hosts_that_share_its_ports(tmp_path: Path) -> None:
    inventory = load(
        tmp_path,
        """
        [[hosts]]
        name = "n[08:11]"
        connector = "local"
        groups = ["brokers"]
        vars = { ports = "30000-30399", root = "/data/n[1:4]" }
        """,
    )
    assert [host.name for host in inventory.hosts] == ["n08", "n09", "n10", "n11"]
    assert [host.ports for host in inventory.hosts] == [
        range(30000, 30100),
        range(30100, 30200),
        range(30200, 30300),
        range(30300, 30400),
    ]
    assert [host.root for host in inventory.hosts] == [
        "/data/n1",
        "/data/n2",
        "/data/n3",
        "/data/n4",
    ]
    assert inventory.groups == {"brokers": ("n08", "n09", "n10", "n11")}


@pytest.mark.parametrize(
    "names, text",
    [
        ([], ""),
        (["n08", "n09", "n10", "n11"], "n[08:11]"),
        (["a1", "a2", "gw", "a3", "b4"], "a1, a2, gw, a3, b4"),
        (["n9", "n10", "n11", "n13", "m"], "n[9:11], n13, m"),
        (["r1-n1", "r1-n2", "r1-n3", "r2-n4"], "r1-n[1:3], r2-n4"),
        (["n1-a", "n2-a", "n3-a", "n4-b"], "n[1:3]-a, n4-b"),
        (["n1", "n02", "n3"], "n1, n02, n3"),
    ],
)
def test_consecutive_names_are_printed_as_an_equivalent_range(names: list[str], text: str) -> None:
    assert format_ranges(names) == text
    assert [name for part in text.split(", ") if part for name in expand_range(part)] == names


def test_a_host_wins_over_its_group_and_a_group_over_the_defaults(tmp_path: Path) -> None:
    inventory = load(
        tmp_path,
        """
        [defaults]
        connector = "local"
        cores = "share"
        [[hosts]]
        name = "a"
        groups = ["fast"]
        vars = { ports = "30000-30009", cores = "share" }
        [[hosts]]
        name = "b"
        groups = ["fast"]
        vars = { ports = "30010-30019" }
        [[hosts]]
        name = "c"
        vars = { ports = "30020-30029" }
        [groups.fast.vars]
        cores = "own"
        cores_reserved = [0]
        """,
    )
    by_name = {host.name: host for host in inventory.hosts}
    assert [by_name[name].cores for name in "abc"] == ["share", "own", "share"]
    assert by_name["b"].cores_reserved == (0,)
    path = tmp_path / "lab.toml"
    origins = {name: str(by_name[name].origins["cores"]) for name in "abc"}
    assert origins == {
        "a": f"{path}:10 (host)",
        "b": f"{path}:19 (group fast)",
        "c": f"{path}:6 (defaults)",
    }


def test_every_problem_is_named_with_its_line_and_the_nearest_valid_word(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        """
        [default]
        [[hosts]]
        name = "a"
        conector = "local"
        [hosts.vars]
        prots = "1-2"
        cores = "shared"
        """,
    )
    assert sorted(found) == [
        "lab.toml:10: hosts[0].vars.cores = 'shared': one of 'share' or 'own'",
        "lab.toml:4: default: unknown key; did you mean 'defaults'?",
        "lab.toml:7: hosts[0].conector: unknown key; did you mean 'connector'?",
        "lab.toml:9: hosts[0].vars.prots: unknown key; did you mean 'ports'?",
    ]


LAB16 = """
[defaults]
user = "bench"
identity = "~/.ssh/id_ed25519_lab"
root = "~/.local/share/pubsubctl"
python = "python3.11"
jump = "gw"
[ssh]
forks_per_gateway = 4
connect_timeout = "2.5s"
[gateways.edge]
address = "edge.lab.example"
port = 2222
[gateways.gw]
address = "10.20.0.1"
user = "jumper"
jump = "edge"
[[hosts]]
name = "n[01:12]"
address = "10.20.0.[11:22]"
groups = ["brokers"]
vars = { bench_address = "10.30.0.[11:22]", ports = "21000-21999", data_dir = "/data/bench" }
[[hosts]]
name = "n[13:14]"
address = "fd00::[13:14]"
groups = ["clients"]
vars = { jump = "none", port = 22022 }
[[hosts]]
name = "n15"
address = "n15.lab.example"
vars = { jump = ["edge"] }
[groups.rack_a]
hosts = ["n[01:08]"]
vars = { failure_domain = "rack-a" }
"""


def test_ssh_hosts_have_addresses_in_pairs_and_the_whole_route_through_gateways(
    tmp_path: Path,
) -> None:
    inventory = load(tmp_path, LAB16.replace("rack_a", "rack-a"))
    n03, n14, n15 = (inventory.host(name) for name in ("n03", "n14", "n15"))
    assert (n03.connector, n03.address, n03.bench_address) == ("ssh", "10.20.0.13", "10.30.0.13")
    assert (n03.user, n03.identity, n03.python) == ("bench", "~/.ssh/id_ed25519_lab", "python3.11")
    assert (n03.port, n03.jump, n03.failure_domain) == (22, ("edge", "gw"), "rack-a")
    assert (n03.root, n03.data_dir) == ("~/.local/share/pubsubctl", "/data/bench")
    assert n03.ports == inventory.host("n04").ports == range(21000, 22000)
    assert (n14.address, n14.bench_address, n14.jump) == ("fd00::14", "fd00::14", ())
    assert (n14.port, n14.failure_domain) == (22022, "n14")
    assert (n15.address, n15.bench_address, n15.jump) == ("n15.lab.example", "", ("edge",))
    assert inventory.gateways["gw"] == Gateway(
        "gw", "10.20.0.1", 22, "jumper", "~/.ssh/id_ed25519_lab", ("edge",)
    )
    assert inventory.gateways["edge"].user == "bench"
    assert inventory.ssh == SshSettings(16, 4, 2.5, 5.0, 2)
    assert inventory.known_hosts == tmp_path / "known_hosts.lab"
    assert not inventory.loopback_only
    assert str(n03.origins["identity"]) == f"{tmp_path}/lab.toml:6 (defaults)"


def test_host_keys_are_read_beside_the_inventory_except_for_local_hosts(
    tmp_path: Path,
) -> None:
    local = load(tmp_path, '[[hosts]]\nname = "a"\nconnector = "local"\n')
    assert (local.known_hosts, local.loopback_only) == (None, True)
    assert local.hosts[0].bench_address == "127.0.0.1"
    text = '[defaults]\nknown_hosts = "keys"\n[[hosts]]\nname = "a"\naddress = "10.0.0.1"\n'
    assert load(tmp_path, text).known_hosts == tmp_path / "keys"


@pytest.mark.parametrize(
    "text, said",
    [
        ('name = "n[1:3]"\naddress = "10.0.0.[1:2]"', "2 values for 3 hosts"),
        ('name = "n[1:3]"\naddress = "10.0.0.1"', "1 value for 3 hosts"),
        ('name = "n[1:3]"\naddress = "10.0.0.[254:256]"', "address = '10.0.0.256'"),
        ('name = "n"\nconnector = "ssh"', "key 'address' of 'n' is missing"),
        ('name = "n"', "key 'connector' of 'n' is missing"),
        ('name = "n"\nconnector = "local"\naddress = "10.0.0.1"', "address is for hosts over SSH"),
        ('name = "n"\nconnector = "local"\nvars = { user = "x" }', "user is for hosts over SSH"),
        (
            'name = "n"\nconnector = "local"\nvars = { bench_address = "10.0.0.1" }',
            "its brokers listen on loopback only",
        ),
        ('name = "n"\naddress = "10.0.0.1"\nvars = { jump = "gv" }', "did you mean 'gw'?"),
        ('name = "n"\naddress = "10.0.0.1"\nvars = { jump = "gw,gw" }', "in a circle"),
        ('name = "n"\naddress = "n.x"\nvars = { bench_address = "n.x" }', "is an IP"),
        ('name = "n"\naddress = "n.x"\nvars = { bench_address = "0.0.0.0" }', "one machine"),
    ],
)
def test_a_host_that_could_not_be_reached_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (found,) = problems(tmp_path, f'[gateways.gw]\naddress = "gw.example"\n[[hosts]]\n{text}\n')
    assert said in found


def test_gateways_that_lead_to_each_other_are_refused(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        """
        [gateways.a]
        address = "a.example"
        jump = "b"
        [gateways.b]
        address = "b.example"
        jump = "a"
        [[hosts]]
        name = "n"
        address = "10.0.0.1"
        vars = { jump = "a" }
        """,
    )
    assert [problem.split(": ", 1)[1] for problem in found] == [
        "gateways.a.jump = 'b': the way leads in a circle",
        "gateways.b.jump = 'a': the way leads in a circle",
        "jump = 'a': the way leads in a circle",
    ]


def test_ports_may_be_the_same_on_different_machines_and_not_on_one(tmp_path: Path) -> None:
    two = """
        [[hosts]]
        name = "a"
        address = "{}"
        vars = {{ ports = "30000-30099", port = 2201 }}
        [[hosts]]
        name = "b"
        address = "{}"
        vars = {{ ports = "30050-30149", port = 2202 }}
    """
    load(tmp_path, two.format("10.0.0.1", "10.0.0.2"))
    (found,) = problems(tmp_path, two.format("10.0.0.1", "10.0.0.1"))
    assert "of b overlap with 30000-30099 of a" in found
    local = '\n[[hosts]]\nname = "c"\nconnector = "local"\nvars = { ports = "30149-30150" }\n'
    (found,) = problems(tmp_path, two.format("10.0.0.1", "127.0.0.1") + local)
    assert "of c overlap with 30050-30149 of b" in found


@pytest.mark.parametrize("name", ["n[01-12]", "n[12:01]", "n[01:11]"])
def test_a_wrong_range_is_one_problem_and_does_not_make_others(tmp_path: Path, name: str) -> None:
    text = f"""
        [[hosts]]
        name = "{name}"
        address = "10.0.0.[11:22]"
        [groups.quiet]
        hosts = ["n03"]
    """
    (found,) = problems(tmp_path, text)
    assert found.startswith("lab.toml:")
    assert "range" in found


def test_two_hosts_of_one_name_are_refused(tmp_path: Path) -> None:
    (found,) = problems(
        tmp_path,
        """
        [[hosts]]
        name = "n[1:3]"
        connector = "local"
        [[hosts]]
        name = "n2"
        connector = "local"
        """,
    )
    assert found == "lab.toml:8: hosts[1].name = 'n2': there is a host of that name, line 5"


def test_ports_that_two_hosts_would_share_are_refused_with_the_next_free_ones(
    tmp_path: Path,
) -> None:
    (found,) = problems(
        tmp_path,
        """
        [[hosts]]
        name = "a"
        connector = "local"
        vars = { ports = "30000-30099" }
        [[hosts]]
        name = "b"
        connector = "local"
        vars = { ports = "30050-30149" }
        """,
    )
    assert found.startswith("lab.toml:11: ports = '30050-30149' of b overlap with 30000-30099 of a")
    assert found.endswith("the next free range begins at 30100")


@pytest.mark.parametrize("second", ["/data/a", "/data/a/deeper", "/data", "/data/../data/./a"])
def test_folders_that_two_hosts_would_share_are_refused(tmp_path: Path, second: str) -> None:
    (found,) = problems(
        tmp_path,
        f"""
        [[hosts]]
        name = "a"
        connector = "local"
        vars = {{ ports = "30000-30001", root = "/data/a" }}
        [[hosts]]
        name = "b"
        connector = "local"
        vars = {{ ports = "30002-30003", root = "{second}" }}
        """,
    )
    assert "lab.toml:11:" in found
    assert "root" in found


def test_groups_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    (found,) = problems(
        tmp_path,
        """
        [[hosts]]
        name = "a"
        connector = "local"
        groups = ["x", "y"]
        [groups.x.vars]
        cores = "own"
        [groups.y.vars]
        cores = "share"
        """,
    )
    assert found == (
        "lab.toml:11: cores = 'share' for a, but group x has 'own' in line 9; "
        "set it in the host's own vars"
    )


def test_a_group_of_hosts_that_do_not_exist_is_refused(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        '[[hosts]]\nname = "n01"\nconnector = "local"\n[groups.x]\nhosts = ["n1"]\n',
    )
    assert "lab.toml:7: groups.x.hosts: no host called 'n1'; did you mean 'n01'?" in found


HOSTILE_NAMES = [
    "",
    "-rf",
    "a b",
    "a;reboot",
    "$(reboot)",
    "`reboot`",
    "../up",
    "a/b",
    "A",
    "ä",
    "a\\u0000b",
    "a\\nb",
    "a" * 33,
    "*",
    "n[1:",
    "n[3:1]",
    "n[1:999999]",
    "n[a:b]",
    "all",
]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_hostile_names_of_hosts_and_groups_are_refused(tmp_path: Path, name: str) -> None:
    if name != "all":
        assert problems(tmp_path, f'[[hosts]]\nname = "{name}"\nconnector = "local"\n')
    host = '[[hosts]]\nname = "h"\nconnector = "local"\n'
    assert problems(tmp_path, f'{host}groups = ["{name}"]\n')


@pytest.mark.parametrize(
    "value",
    [
        'ports = "0-10"',
        'ports = "30000"',
        'ports = "30001-30000"',
        'ports = "30000-70000"',
        "ports = 30000",
        'root = "relative"',
        'root = "/a/../b"',
        'root = "/a\\u001b[2J"',
        'root = ""',
        "cores_reserved = [-1]",
        "broker_nice = 20",
        "broker_nice = -1",
        'cores_reserved = "0"',
        'password = "secret"',
    ],
)
def test_hostile_and_senseless_values_are_refused(tmp_path: Path, value: str) -> None:
    (found,) = problems(
        tmp_path, f'[[hosts]]\nname = "h"\nconnector = "local"\n[hosts.vars]\n{value}\n'
    )
    assert found.startswith("lab.toml:7: hosts[0].vars.")
    assert found.isprintable()


@pytest.mark.parametrize(
    "content, said",
    [
        (b"", "key 'schema' is missing"),
        (b"\xff\xfe", "not UTF-8"),
        (b"schema = ", "not TOML"),
        (b'schema = "pubsubctl/topology/1"', "this reads 'pubsubctl/inventory/1'"),
        (b"a = " + b"[" * 50_000, "not TOML"),
        (b"#" * (1 << 20) + b"#", "larger than 1 MiB"),
    ],
)
def test_a_file_that_is_no_inventory_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        load_inventory(path)
    assert said in str(caught.value) or "nested more than" in str(caught.value)


@pytest.fixture
def lab(tmp_path: Path) -> Inventory:
    return load(
        tmp_path,
        """
        [[hosts]]
        name = "n[1:3]"
        connector = "local"
        groups = ["brokers"]
        vars = { ports = "30000-30099" }
        [[hosts]]
        name = "m1"
        connector = "local"
        groups = ["clients"]
        vars = { ports = "30100-30199" }
        """,
    )


@pytest.mark.parametrize(
    "selectors, names",
    [
        ([], ["n1", "n2", "n3", "m1"]),
        (["n2"], ["n2"]),
        (["brokers"], ["n1", "n2", "n3"]),
        (["n[13]"], ["n1", "n3"]),
        (["!n1"], ["n2", "n3", "m1"]),
        (["brokers", "!n*2"], ["n1", "n3"]),
        (["m1", "n3"], ["n3", "m1"]),
        (["m1,n3"], ["n3", "m1"]),
        (["n[2:3]", "m1"], ["n2", "n3", "m1"]),
        (["brokers, !n[1:2]"], ["n3"]),
    ],
)
def test_a_selector_is_a_host_a_group_a_pattern_or_a_refusal_of_these(
    lab: Inventory, selectors: list[str], names: list[str]
) -> None:
    assert [host.name for host in lab.select(selectors)] == names


@pytest.mark.parametrize(
    "selectors, said",
    [
        (["n4"], "did you mean"),
        (["brokrs"], "'brokers'"),
        (["!all"], "no host"),
        (["n[2:4]"], "no host called 'n4'; did you mean"),
        (["n[3:1]"], "runs backwards"),
        ([""], "no host or group called ''"),
        (["n1,"], "no host or group called ''"),
    ],
)
def test_a_selector_that_matches_nothing_is_an_error(
    lab: Inventory, selectors: list[str], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        lab.select(selectors)


def test_the_inventory_in_the_repository_is_the_one_that_init_writes() -> None:
    root = Path(__file__).parents[2]
    ours = (root / "inventories" / "local.toml").read_bytes()
    assert (root / "pubsubctl/scaffold/inventories/local.toml").read_bytes() == ours
    assert len(load_inventory(root / "inventories" / "local.toml").hosts) == 3


def test_metrics_have_the_last_port_of_a_host_and_brokers_the_others(tmp_path: Path) -> None:
    host = '[[hosts]]\nname = "h"\nconnector = "local"\n[hosts.vars]\nports = "30000-30009"\n'
    (off,) = load(tmp_path, host).hosts
    assert (off.metrics_port, off.broker_ports) == (0, range(30_000, 30_010))
    (on,) = load(tmp_path, f'{host}metrics = "on"\n').hosts
    assert (on.metrics_port, on.broker_ports) == (30_009, range(30_000, 30_009))


def test_brokers_with_their_own_cores_have_no_nice_value(tmp_path: Path) -> None:
    host = '[[hosts]]\nname = "h"\nconnector = "local"\n[hosts.vars]\n'
    (found,) = problems(tmp_path, f'{host}cores = "own"\nbroker_nice = 5\n')
    assert "broker_nice = 5: brokers of h have cores of their own" in found
    (host_of,) = load(tmp_path, f'{host}broker_nice = 5\nports = "30000-30009"\n').hosts
    assert host_of.broker_nice == 5


def test_defaults_in_the_schema_are_values_that_a_file_may_have() -> None:
    schema = json_schema()
    own = schema["$defs"]["SshEntry"]["properties"]
    whole = schema["properties"]["ssh"]["default"]
    for key, default in (("connect_timeout", "10s"), ("keepalive", "5s")):
        assert own[key]["default"] == whole[key] == default
        assert read_typed(SshEntry, {key: default}) == SshEntry()


LOCAL = 'hosts = [{ name = "a", connector = "local" }]\n'


@pytest.mark.parametrize(
    "text",
    [
        LOCAL,
        'hosts = [{ name = "n[1:3]", address = "n[1:3].lab", groups = ["x"] }]',
        'hosts = [{ name = "a", address = "a.lab", vars = { port = 2222, jump = "gw,gw2" } }]',
        LOCAL + '[defaults]\nidentity = "~/.ssh/id"\nmem_per_broker = "64MiB"\nknown_hosts = "k"',
        LOCAL + '[ssh]\nretries = 10\nconnect_timeout = "100ms"',
        LOCAL + '[expect]\ncores_min = 2\ngovernor = "performance"\nclock_error_max = "1ms"',
        LOCAL + '[gateways.gw]\naddress = "gw.lab"\nidentity = ["/k/a b", "/k/c"]',
        LOCAL + '[groups.g]\nhosts = ["a"]\nvars = { cores_reserved = [0, 4095], numa = "pin:1" }',
    ],
)
def test_a_valid_file_reads_the_same_with_and_without_pydantic(text: str) -> None:
    values = tomllib.loads(HEAD + text)
    assert read_typed(InventoryFile, values) == TypeAdapter(InventoryFile).validate_python(values)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hosts = 3",
        "hosts = [3]",
        'hosts = [{ name = 3, connector = "local" }]',
        'hosts = [{ name = "a", conector = "local" }]',
        'hosts = [{ name = "a", connector = "docker" }]',
        'hosts = [{ name = "a", vars = { cores = "all" } }]',
        'hosts = [{ name = "a", vars = { port = 65536 } }]',
        'hosts = [{ name = "a", vars = { port = true } }]',
        'hosts = [{ name = "a", vars = { cores_reserved = [4096] } }]',
        LOCAL + "[ssh]\nretries = 11",
        LOCAL + "[expect]\nlink_gbps_min = 0",
        LOCAL + '[expect]\ngovernor = "Performance!"',
        LOCAL + "[gateways.gw]\nport = 22",
        LOCAL + "[defaults]\nidentity = []",
        LOCAL + f"[defaults]\nidentity = {['/k'] * (MOST_IDENTITIES + 1)}",
    ],
)
def test_a_file_that_pydantic_refuses_is_not_read_without_pydantic(text: str) -> None:
    values = tomllib.loads(HEAD + text)
    with pytest.raises(ValidationError):
        TypeAdapter(InventoryFile).validate_python(values)
    with pytest.raises(NotPlain):
        read_typed(InventoryFile, values)


def test_a_valid_inventory_does_not_wait_for_pydantic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(model: object, file: object) -> None:
        pytest.fail("validated by pydantic")

    monkeypatch.setattr("pubsubctl.inventory.inventory.validate", refuse)
    assert len(load(tmp_path, LOCAL).hosts) == 1


@pytest.mark.parametrize(
    "text, problem",
    [
        (
            '[[hosts]]\nname = "n1"\njump = "gw"\n',
            "lab.toml:5: hosts[0].jump: unknown key; it belongs to [hosts.vars]",
        ),
        (
            'connect_timeout = "5s"\n[[hosts]]\nname = "n1"\n',
            "lab.toml:3: connect_timeout: unknown key; it belongs to [ssh]",
        ),
        (
            'address = "x"\n[[hosts]]\nname = "n1"\n',
            "lab.toml:3: address: unknown key; it belongs to [gateways.NAME] or [[hosts]]",
        ),
        (
            '[[hosts]]\nname = "n1"\nadress = "x"\n',
            "lab.toml:5: hosts[0].adress: unknown key; did you mean 'address'?",
        ),
    ],
    ids=["vars", "ssh", "several", "misspelt"],
)
def test_a_key_of_another_table_is_answered_with_its_table(
    tmp_path: Path, text: str, problem: str
) -> None:
    assert problems(tmp_path, text) == [problem]
