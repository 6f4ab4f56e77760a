"""Stories about inventories of other tools: imported values, and values that are ignored."""

import subprocess
from pathlib import Path

import pytest

from pubsubctl.errors import UserError
from pubsubctl.hosts.ssh.client_config import ClientConfig
from pubsubctl.inventory.importers.ansible import read_ansible
from pubsubctl.inventory.importers.findings import (
    Findings,
    inventory_text,
    make_host_name,
    read_source,
    settle_names,
)
from pubsubctl.inventory.importers.ssh_config import read_ssh_config
from pubsubctl.inventory.inventory import Gateway, Inventory, load_inventory
from pubsubctl.inventory.inventory_schema import check_address
from tests.pubsubctl.conftest import Call

INI = """\
# the lab
gw.example.com ansible_port=2222

[brokers]
node[01:03].lab.example ansible_host=10.0.0.9   # one behind the other
n7 ansible_host=10.0.0.7 ansible_port=22022 ansible_ssh_common_args='-o ProxyJump=me@gw:2200'

[load_gen]
m[a:b].lab.example ansible_user=loader

[rack:children]
brokers

[all:vars]
ansible_user = bench
ansible_ssh_private_key_file=~/.ssh/id_lab
ansible_python_interpreter=/usr/bin/python3.11

[rack:vars]
ansible_user=racker
ntp_server=ntp.example
"""

YAML = """\
all:
  vars:
    ansible_user: bench
    ansible_ssh_private_key_file: ~/.ssh/id_lab
    ansible_python_interpreter: /usr/bin/python3.11
  hosts:
    gw.example.com: { ansible_port: 2222 }
  children:
    rack:
      vars:
        ansible_user: racker
        ntp_server: ntp.example
      children:
        brokers:
          hosts:
            node[01:03].lab.example:
              ansible_host: 10.0.0.9
            n7:
              ansible_host: 10.0.0.7
              ansible_port: 22022
              ansible_ssh_common_args: -o ProxyJump=me@gw:2200
    load_gen:
      hosts:
        m[a:b].lab.example:
          ansible_user: loader
"""

SSH = """\
Host gw
    HostName gw.example.com
    User jumper
    Port 2222
Host n01 n02
    HostName %h.lab.example
    ProxyJump gw
Host n02
    Port 2022
Host *.web !private.web
    User www
Host far
    HostName 10.9.9.9
    ProxyJump ops@edge.example:2200,gw
Host n*
    User bench
    IdentityFile "%d/.ssh/id_lab"
Match exec "touch PWNED"
    ForwardAgent yes
Host away
    User me
    HostName fd00::7
    ProxyJump none
    LocalCommand touch PWNED
Host *
    User everybody
"""


def imported(folder: Path, found: Findings) -> Inventory:
    path = folder / "imported.toml"
    path.write_text(inventory_text(found, "lab", Path("their-file")))
    return load_inventory(path)


@pytest.mark.parametrize("text, name", [(INI, "hosts"), (YAML, "hosts.yml"), (YAML, "hosts")])
def test_ansible_groups_ranges_and_variables_become_ours(
    tmp_path: Path, text: str, name: str
) -> None:
    found = read_ansible(text, Path(name))
    inventory = imported(tmp_path, found)
    names = ["gw-example-com", "node01", "node02", "node03", "n7", "ma", "mb"]
    assert [host.name for host in inventory.hosts] == names
    n7, ma, node02 = (inventory.host(name) for name in ("n7", "ma", "node02"))
    assert (n7.address, n7.port, n7.user, n7.jump) == ("10.0.0.7", 22022, "racker", ("gw",))
    assert (ma.address, ma.user, ma.groups) == ("ma.lab.example", "loader", ("load-gen",))
    assert (node02.groups, node02.python) == (("brokers", "rack"), "/usr/bin/python3.11")
    assert {host.identity for host in inventory.hosts} == {"~/.ssh/id_lab"}
    assert inventory.host("gw-example-com").user == "bench"
    (gateway,) = inventory.gateways.values()
    assert (gateway.address, gateway.port, gateway.user) == ("gw", 2200, "me")
    assert found.notes == [f"{name}: variable 'ntp_server' is not taken over"]


def test_host_blocks_of_ssh_become_hosts_and_gateways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **keywords: object) -> None:
        raise AssertionError(f"started {arguments}")

    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    monkeypatch.setattr("os.system", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)
    monkeypatch.setattr("socket.gethostbyname", refuse)
    found = read_ssh_config(SSH, Path("config"))
    inventory = imported(tmp_path, found)
    assert [host.name for host in inventory.hosts] == ["n01", "n02", "far", "away"]
    n02, far, away = (inventory.host(name) for name in ("n02", "far", "away"))
    assert (n02.address, n02.port, n02.user, n02.jump) == (
        "n02.lab.example",
        2022,
        "bench",
        ("gw",),
    )
    assert (n02.user, n02.identity) == ("bench", "~/.ssh/id_lab")
    assert (far.user, far.jump) == ("everybody", ("edge", "gw"))
    assert (away.address, away.user, away.jump) == ("fd00::7", "me", ())
    assert inventory.gateways == {
        "gw": Gateway("gw", "gw.example.com", 2222, "jumper"),
        "edge": Gateway("edge", "edge.example", 2200, "ops"),
    }
    assert found.notes == [
        "config:18: Match is not taken over",
        "config:24: LocalCommand is not taken over",
    ]


def test_ansible_inventories_are_imported_with_their_meaning(tmp_path: Path) -> None:
    text = """\
[brokers]
n[1:2]:2200
n3 ansible_host=10.0.0.3 ansible_ssh_common_args='-o StrictHostKeyChecking=no -o ProxyJump=a,b:2'
n4 ansible_ssh_common_args='-o ProxyCommand="ssh -q -W %h:%p -p 22022 me@gw.lab"'
n5:2201 ansible_port=2202 ansible_ssh_extra_args='-C -J c'
"""
    found = read_ansible(text, Path("hosts"))
    inventory = imported(tmp_path, found)
    told = [(host.name, host.address, host.port, host.jump) for host in inventory.hosts]
    assert told == [
        ("n1", "n1", 2200, ()),
        ("n2", "n2", 2200, ()),
        ("n3", "10.0.0.3", 22, ("a", "b")),
        ("n4", "n4", 22, ("gw",)),
        ("n5", "n5", 2202, ("c",)),
    ]
    gateway = inventory.gateways["gw"]
    assert (gateway.address, gateway.port, gateway.user) == ("gw.lab", 22022, "me")
    assert found.notes == [
        "hosts: ansible_ssh_common_args: '-o StrictHostKeyChecking=no' is not taken over",
        "hosts: ansible_ssh_extra_args: '-C' is not taken over",
    ]


def test_a_host_that_others_jump_through_is_a_gateway(tmp_path: Path) -> None:
    found = read_ansible("gw\nn1 ansible_ssh_common_args='-J ops@gw'\n", Path("hosts"))
    inventory = imported(tmp_path, found)
    assert [(host.name, host.jump) for host in inventory.hosts] == [("n1", ("gw",))]
    assert inventory.gateways == {"gw": Gateway("gw", "gw", 22, "ops")}
    assert "hosts: 'gw' is a gateway of others, and so no host" in found.notes


def test_a_value_in_a_vault_is_left_out_unless_it_is_needed(tmp_path: Path) -> None:
    text = "all: {hosts: {n1: {ansible_host: 10.0.0.1, ansible_become_pass: !vault |\n  6162\n}}}"
    text = (
        "all:\n  hosts:\n    n1:\n      ansible_host: 10.0.0.1\n      %s: !vault |\n        6162\n"
    )
    found = read_ansible(text % "ansible_become_pass", Path("hosts.yml"))
    assert [host.address for host in imported(tmp_path, found).hosts] == ["10.0.0.1"]
    assert "hosts.yml: variable 'ansible_become_pass' is not taken over" in found.notes
    found = read_ansible(text % "ansible_user", Path("hosts.yml"))
    (entry,) = found.unusable
    assert str(entry).startswith(
        "hosts.yml:5: host 'n1': ansible_user is a template, '{{ a value in"
    )


def test_a_proxy_command_that_only_jumps_is_a_jump(tmp_path: Path) -> None:
    text = """\
Include conf.d/*
Host n1
    ProxyCommand ssh -W %h:%p ops@gw
    ProxyJump other
Host n2
    ProxyCommand ssh -i key -W %h:%p gw
"""
    source = tmp_path / "config"
    found = read_ssh_config(text, source)
    assert [host.jump for host in imported(tmp_path, found).hosts] == [("gw",), ("gw-2",)]
    assert found.gateways["gw"] == {"address": "gw", "user": "ops"}
    assert found.gateways["gw-2"] == {"address": "gw", "identity": f"{tmp_path}/key"}
    assert found.notes == [
        f"{source}:1: Include is not followed: 'conf.d/*' matches no file; import the file by "
        "itself",
        f"{source}: key 'key' is a relative path; taken as {tmp_path}/key",
    ]


def test_errors_name_the_imported_file_and_no_other_file() -> None:
    found = read_ansible("all: {hosts: {'bad host': }}", Path("hosts.yml"))
    with pytest.raises(UserError) as caught:
        inventory_text(found, "lab", Path("hosts.yml"))
    assert [problem[:60] for problem in caught.value.problems] == [
        "hosts.yml:1: host 'bad host': address = 'bad host': an addre",
        "hosts.yml: 1 entry cannot be taken over; --skip-unusable tak",
    ]


def test_a_blank_that_ssh_reads_as_a_letter_is_refused() -> None:
    for line in ("\fHostName x", "\xa0HostName x", "HostName\vx", "\u2003# x", "\f"):
        with pytest.raises(UserError, match="config:2: "):
            ClientConfig(f"Host n1\n{line}\n", Path("config"))
    found = ClientConfig("Host n1\n \t\rHostName \t x \f\r\n\r\n", Path("config"))
    assert found.settings("n1").hostname == "x"


def test_a_name_with_a_last_part_of_digits_is_no_number_of_an_address() -> None:
    for name in ("n.3", "10.rack.7", "n.0x1f"):
        assert check_address(name) == name
    for number in ("127.1", "0x7f.1", "1.2.3", "0x7f000001"):
        with pytest.raises(ValueError, match="an address is"):
            check_address(number)


def test_two_hosts_that_would_have_one_name_keep_all_of_theirs() -> None:
    names, problems = settle_names(["a.x", "a.y", "B_1"])
    assert (names, problems) == ({"a.x": "a-x", "a.y": "a-y", "B_1": "b-1"}, {})
    assert make_host_name("10.0.0.7") == "10-0-0-7"
    _, problems = settle_names(["a.x", "A.X"])
    assert any("would both be called a-x" in text for text in problems.values())
    with pytest.raises(UserError, match="cannot be turned into a name"):
        make_host_name("…")


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{','.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(9)
)
HOSTILE_YAML = [
    "!!python/object/apply:os.system ['touch PWNED']",
    "all: !!python/object/apply:os.system ['touch PWNED']",
    "all: !!python/object/new:subprocess.Popen [['touch', 'PWNED']]",
    "all: !!python/name:os.system",
    "all: !!binary aGVsbG8=",
    "all: !!set {a}",
    "all: { vars: { ansible_user: !vault secret } }",
    "%TAG ! tag:example,2000:\n---\nall: !x {}",
    "--- &a\nall: *a",
    BOMB,
    "all: {<<: {hosts: {}}}",
    "all: &a {hosts: {}}",
    "[" * 200_000,
    "{a: " * 200_000,
    "- " * 200_000,
    "? " * 100_000,
    "all: {}\n---\nall: {}",
    "all: {}\nall: {}",
    "? [a]\n: b",
    "? {a: b}\n: c",
    "just text",
    "- a\n- b",
    "all: text",
    "all: {hosts: [n1]}",
    "all: {children: {a: {hosts: {n1: text}}}}",
    "all: {plugin: x}",
    "\x00",
    "\ufeff\x07",
    "all: 'open",
    "all: {hosts: {'n[1:99999]': }}",
    "all: {hosts: {'n[1:4000][1:4000]': }}",
    "all: {hosts: {'n1': {ansible_user: '{{ lookup(1) }}'}}}",
    "all: {hosts: {'n1': {ansible_user: '$(touch PWNED)'}}}",
    "all: {hosts: {'n1': {ansible_port: '22; touch PWNED'}}}",
    "all: {hosts: {'n1': {ansible_host: '-oProxyCommand=touch PWNED'}}}",
    "all: {hosts: {'n1': {ansible_ssh_private_key_file: '../key'}}}",
    "all: {hosts: {'n1': {ansible_python_interpreter: 'python -c x'}}}",
    "all: {hosts: {'n1': {ansible_ssh_common_args: '-J $(x)@gw'}}}",
    "all: {hosts: {'$(touch PWNED)': }}",
    "all: {hosts: {'…': }}",
    "all: {children: {a: {children: {a: }}}}",
]
HOSTILE_INI = [
    "n1 ansible_user='open",
    "n1 word",
    "n[1:99999]",
    "n[9:1]",
    "n[1:4000][1:4000]",
    "n[1:2:0]",
    "n[a:9]",
    "n[1:",
    "n1 ansible_user={{x}}",
    "n1 ansible_user='a;b'",
    "n1 ansible_host='`x`'",
    "n1 ansible_port=-1",
    "n1 ansible_port=99999",
    "[a:vars]\nnothing",
    "[a:children]\na",
    "[a:children]\nb\n[b:children]\na\n[a]\nn1",
    "\n".join(f"[g{n}]" for n in range(1000)),
    "\n".join(f"[g{n}]\nn[1:4000]" for n in range(200)),
    "localhost ansible_connection=docker",
    "",
]
HOSTILE_SSH = [
    "Host",
    "Host n1\nPort x",
    "Host n1\nPort 99999",
    "Host n1\nUser $(touch PWNED)",
    "Host n1\nHostName -oProxyCommand=x",
    "Host n1\nHostName %k",
    "Host n1\nProxyJump gw;touch PWNED",
    "Host n1\nProxyJump n1",
    "Host n1\nIdentityFile ../key",
    "Host n1\nIdentityFile ~/.ssh/%z",
    "Host a\nProxyJump b\nHost b\nProxyJump a",
    "Host …",
    "Host *\nUser x",
    "Match all\nUser x",
    "Include /etc/passwd",
]


@pytest.mark.parametrize(
    "kind, text",
    [
        *[("yaml", text) for text in HOSTILE_YAML],
        *[("ini", text) for text in HOSTILE_INI],
        *[("ssh", text) for text in HOSTILE_SSH],
    ],
    ids=lambda value: repr(value[:30]),
)
def test_hostile_inventories_are_refused_without_side_effects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / {"yaml": "h.yml", "ini": "hosts", "ssh": "config"}[kind]
    path.write_text(text, encoding="utf-8")
    reader = read_ssh_config if kind == "ssh" else read_ansible
    with pytest.raises(UserError) as caught:
        inventory_text(reader(read_source(path), path), "lab", path)
    assert all(problem.isprintable() for problem in caught.value.problems)
    assert [row.name for row in tmp_path.iterdir()] == [path.name]


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(UserError, match="larger than 1 MiB"):
        read_source(path)


def test_a_password_is_neither_imported_nor_repeated(call: Call, project: Path) -> None:
    (project / "hosts").write_text("n1 ansible_host=10.0.0.1 ansible_ssh_pass=CANARY-7f3a\n")
    answer = call("inventory", "import", "ansible", "hosts", "-o", "lab.toml")
    assert answer.status == 0
    assert "variable 'ansible_ssh_pass' is not taken over" in answer.err
    assert "CANARY" not in answer.out + answer.err + (project / "lab.toml").read_text()
    assert call("-i", "lab.toml", "inventory", "lint").status == 0
    assert call("inventory", "import", "ansible", "hosts", "-o", "lab.toml").status == 2
    assert call("inventory", "import", "ansibel", "hosts").status == 2
