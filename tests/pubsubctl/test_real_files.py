"""Stories about files of real labs, and the values with which the files' own tools connect."""

import getpass
import os
import random
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pubsubctl.errors import UserError
from pubsubctl.hosts.ssh.client_config import ClientConfig, UserConfig
from pubsubctl.hosts.ssh.fabric_connection import Hop
from pubsubctl.inventory.importers.ansible import read_ansible
from pubsubctl.inventory.importers.findings import Findings, inventory_text
from pubsubctl.inventory.importers.ssh_config import read_ssh_config
from pubsubctl.inventory.inventory import Inventory, load_inventory
from tests.helpers.patience import PATIENCE_S
from tests.pubsubctl.conftest import Call
from tests.pubsubctl.test_ansible_against_ansible import INVENTORIES
from tests.pubsubctl.test_ssh_config_against_ssh import CONFIGURATIONS, by_ssh, real_ssh


def imported(folder: Path, found: Findings, *, skip_unusable: bool = False) -> Inventory:
    path = folder / "imported.toml"
    path.write_text(inventory_text(found, "lab", Path("theirs"), skip_unusable=skip_unusable))
    return load_inventory(path)


def refusal(found: Findings) -> tuple[str, ...]:
    with pytest.raises(UserError) as caught:
        inventory_text(found, "lab", Path("theirs"))
    assert caught.value.exit_status == 2
    assert caught.value.problems[-1].endswith("--skip-unusable takes the rest")
    return caught.value.problems[:-1]


def gateway_of(inventory: Inventory, host: str) -> tuple[str, int, str | None, str | None]:
    (name,) = inventory.host(host).jump
    gateway = inventory.gateways[name]
    return gateway.address, gateway.port, gateway.user, gateway.identity


@pytest.mark.parametrize(
    "line, gateway",
    [
        (
            "ansible_ssh_common_args='-o ProxyCommand=\"ssh -W %h:%p -q gw@203.0.113.7\"'",
            ("203.0.113.7", 22, "gw", None),
        ),
        ("ansible_ssh_common_args='-o ProxyJump=\"bench@gw\"'", ("gw", 22, "bench", None)),
        (
            "ansible_ssh_common_args=\"-o ProxyCommand='ssh -W %h:%p gw'\"",
            ("gw", 22, None, None),
        ),
        ("ansible_ssh_common_args=-o ProxyJump=gw:2200", ("gw", 2200, None, None)),
        ("ansible_ssh_extra_args='-J ssh://me@gw:22'", ("gw", 22, "me", None)),
        (
            "ansible_ssh_args='-oProxyCommand=\"ssh -i /k/id -p 2200 -l me -W %h:%p gw\" -C'",
            ("gw", 2200, "me", "/k/id"),
        ),
    ],
)
def test_a_gateway_in_variables_of_a_group_is_taken_over(
    tmp_path: Path, line: str, gateway: tuple[Any, ...]
) -> None:
    text = f"[g]\nn1 ansible_host=10.0.0.1\n[g:vars]\n{line}\n"
    inventory = imported(tmp_path, read_ansible(text, Path("hosts")))
    assert gateway_of(inventory, "n1") == gateway


def test_the_priority_of_a_group_decides_between_groups_of_equal_depth(tmp_path: Path) -> None:
    text = (
        "[a]\nn1\n[b]\nn1\n[p:children]\na\n[a:vars]\nansible_user=a\nansible_group_priority=5\n"
        "[b:vars]\nansible_user=b\n[p:vars]\nansible_user=p\nansible_group_priority=99\n"
    )
    assert imported(tmp_path, read_ansible(text, Path("h"))).host("n1").user == "a"
    text = text.replace("[p:children]\na\n", "[p:children]\na\nb\n")
    assert imported(tmp_path, read_ansible(text, Path("h"))).host("n1").user == "a"
    text = text.replace("ansible_group_priority=5\n", "")
    assert imported(tmp_path, read_ansible(text, Path("h"))).host("n1").user == "b"


@pytest.mark.parametrize(
    "name, text, hosts",
    [
        ("h", "[2001:db8::12]:2222\n", {"2001-db8-12": ("2001:db8::12", 2222)}),
        ("h", "n1\n[all:vars]\nansible_port=2222 # moved\n", {"n1": ("n1", 2222)}),
        ("inventory.yml", "[brokers]\nn1:2222\n", {"n1": ("n1", 2222)}),
        (
            "h",
            "node[A:C]\n",
            {"nodea": ("nodeA", 22), "nodeb": ("nodeB", 22), "nodec": ("nodeC", 22)},
        ),
        ("h", "r[:2]\n", {"r0": ("r0", 22), "r1": ("r1", 22), "r2": ("r2", 22)}),
        ("h.yml", "g: {hosts: n1}\n", {"n1": ("n1", 22)}),
        (
            "h.yml",
            "g: {hosts: {n1: {x: &x [1], y: *x, z: !unsafe '{{a', w: !vault 'b'}}}\n",
            {"n1": ("n1", 22)},
        ),
        (
            "h.yml",
            "g: {vars: &v {ansible_port: 5}, hosts: {n1: {<<: *v, ansible_host: a}}}\n",
            {"n1": ("a", 5)},
        ),
    ],
)
def test_a_form_of_ansible_is_read(
    tmp_path: Path, name: str, text: str, hosts: dict[str, tuple[str, int]]
) -> None:
    inventory = imported(tmp_path, read_ansible(text, Path(name)))
    assert {host.name: (host.address, host.port) for host in inventory.hosts} == hosts


@pytest.mark.parametrize(
    "name, text",
    [
        ("hosts", "[g]\nn1\n[a]\ng ansible_user=x\n"),
        ("h.yml", "g: {hosts: {n1: }}\na: {hosts: {g: {ansible_user: x}}}\n"),
    ],
)
def test_variables_of_a_host_called_as_a_group_are_those_of_the_group(name: str, text: str) -> None:
    found = read_ansible(text, Path(name))
    assert {host.name: host.variables.get("user") for host in found.hosts} == {
        "n1": "x",
        "g": None,
    }
    assert any("'g' is also a group, which takes the host's variables" in n for n in found.notes)


def test_commas_do_not_separate_the_names_of_a_host_line() -> None:
    found = read_ssh_config("Host n3\nHost n1,n2\n  User x\n", Path("config"))
    assert [host.name for host in found.hosts] == ["n3"]
    assert refusal(found) == (
        "config:2: host 'n1,n2': blanks separate names, commas do not: Host n1 n2",
    )


def test_an_equals_sign_after_a_keyword_in_quotes_is_refused() -> None:
    with pytest.raises(UserError, match=r"config:2: .* for a part of the value"):
        ClientConfig('Host n1\n"Port" = 2\n', Path("config"))
    settings = ClientConfig('Host n1\n"Port" 2\n', Path("config")).settings("n1")
    assert settings.port == 2


def test_an_undefined_child_is_a_typo() -> None:
    text = "[brokers]\nn1\n[top:children]\nbrokres\nclients\n[broker:vars]\na=b\n"
    with pytest.raises(UserError) as caught:
        read_ansible(text, Path("hosts"))
    first, second, third = caught.value.problems
    assert first == (
        "hosts:4: [top:children]: no group called 'brokres' is defined; did you mean 'brokers'?"
    )
    assert second.startswith("hosts:5: [top:children]: no group called 'clients' is defined; ")
    assert third == (
        "hosts:6: [broker:vars]: no group called 'broker' is defined; did you mean 'brokers'?"
    )


@pytest.mark.parametrize(
    "command",
    [
        "nc -X 5 -x 127.0.0.1:1080 %h %p",
        "corkscrew proxy 8080 %h %p",
        "connect -S socks:1080 %h %p",
        "ssh gw nc %h %p",
        "ssh -W localhost:22 gw",
        "ssh -F other -W %h:%p gw",
        "ssh -W %h:%p gw; touch PWNED",
        "ssh -W %h:%p $(touch PWNED)",
        "ssh -W %h:%p `touch PWNED`",
        "sh -c 'ssh -W %h:%p gw'",
        "ssh -W %h:%p gw | tee log",
        "ssh -o ProxyUseFdpass=yes -W %h:%p gw",
        "ssh -W %h:%p -w 1 gw",
        "/usr/bin/env ssh -W %h:%p gw",
        "ssh -W %h:%p %j@gw",
        "ssh",
    ],
)
def test_a_route_that_is_no_gateway_is_refused_and_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    text = f"Host n1\n  ProxyCommand {command}\nHost n*\n  ProxyJump gw\nHost n1 n2\n  User x\n"
    found = read_ssh_config(text, Path("config"))
    (problem,) = refusal(found)
    assert problem.startswith("config:2: host 'n1': ")
    inventory = imported(tmp_path, found, skip_unusable=True)
    assert [(host.name, host.jump) for host in inventory.hosts] == [("n2", ("gw",))]
    assert not (tmp_path / "PWNED").exists()


def test_comments_after_values_are_removed(tmp_path: Path) -> None:
    text = "Host n1 # first\n  Port 2222 # moved\n  User lab # mine\n  HostName gw # in\n"
    host = imported(tmp_path, read_ssh_config(text, Path("config"))).host("n1")
    assert (host.address, host.port, host.user) == ("gw", 2222, "lab")


GATEWAY_ARGUMENTS = [
    "ubuntu@gw",
    "-i /k/pem -W %h:%p ubuntu@gw",
    "-i /k/pem gw -W %h:%p",
    "-q -W %h:%p -p 2200 gw",
    "-qTW %h:%p -l me gw",
    "-l first -l second -W %h:%p third@gw",
    "-o User=me -o Port=7 -W %h:%p gw",
    "-oStrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -W [%h]:%p gw",
    "-o 'IdentityFile /k/a' -i /k/b -W %h:%p gw",
    "-o HostName=10.9.9.9 -W %h:%p gw",
    "-W %h:%p ssh://me@gw:2200",
    "-4AC -vv -W %h:%p gw",
    "-W %h:%p -- gw",
    "-p 7 -o Port=8 -W %h:%p other",
    "-i '/k/a b' -W %h:%p gw 2>/dev/null",
    "-i $KEYS/pem -W %h:%p gw 2> /dev/null",
]
COMMAND_FORMS = ["{}", '"{}"', "exec {}", "{} # a comment"]


@real_ssh
@pytest.mark.parametrize(
    "form, arguments",
    [
        (form, arguments)
        for form in COMMAND_FORMS
        for arguments in GATEWAY_ARGUMENTS
        if '"' not in form or "'" not in arguments
    ],
)
def test_the_gateway_of_a_command_is_resolved_as_by_ssh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, form: str
) -> None:
    if "-W" not in arguments:
        arguments += " -W %h:%p"
    # ssh leaves out keys of -i that do not exist.
    for name in ("pem", "a", "b", "a b"):
        (tmp_path / name).write_text("no key")
    monkeypatch.setenv("KEYS", str(tmp_path))
    arguments = arguments.replace("/k/", f"{tmp_path}/")
    command = form.format(f"ssh {arguments}")
    text = (
        f"Host n1\n  HostName 10.0.0.1\n  User deep\n  ProxyCommand {command}\n"
        "Host gw\n  User jumper\n  Port 22022\n  HostName gw.example\n  IdentityFile ~/.ssh/gw\n"
    )
    path = tmp_path / "config"
    path.write_text(text)
    # Without -W and with -G, ssh resolves the gateway and connects to nothing.
    asked = re.sub(r"-(\w*)W \S+", lambda found: f"-{found[1]}" if found[1] else "", arguments)
    asked = re.sub("2> ?/dev/null", "", asked)
    done = subprocess.run(
        ["/bin/sh", "-c", f"ssh -G -F {path} {asked}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    wanted: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        wanted.setdefault(key, []).append(value)
    inventory = imported(tmp_path, read_ssh_config(text, path))
    (name,) = inventory.host("n1").jump
    gateway = inventory.gateways[name]
    assert gateway.address == wanted["hostname"][0]
    assert gateway.port == int(wanted["port"][0])
    assert (gateway.user or getpass.getuser()) == wanted["user"][0]
    keys = [os.path.expanduser(key) for key in wanted["identityfile"]]
    if gateway.identities or not any("id_rsa" in key for key in keys):
        assert [os.path.expanduser(key) for key in gateway.identities] == keys


def test_a_relative_key_begins_at_the_folder_of_the_file(tmp_path: Path) -> None:
    text = 'Host n1\n  ProxyCommand "ssh -i k.pem -W %h:%p ubuntu@gw"\n'
    found = read_ssh_config(text, tmp_path / "config")
    inventory = imported(tmp_path, found)
    assert gateway_of(inventory, "n1") == ("gw", 22, "ubuntu", f"{tmp_path}/k.pem")
    assert any("'k.pem' is a relative path" in note for note in found.notes)


def test_all_keys_are_kept_with_their_tokens_filled_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEYS", "/keys")
    user = getpass.getuser()
    text = (
        "Host n1\n  IdentityFile %d/.ssh/id_%u\n  IdentityFile ${HOME}/.ssh/b\n"
        '  IdentityFile "~/my keys/c"\n  IdentityFile ${KEYS}/%n-%r\n  User them\n'
        "  ProxyJump %r@gw\n"
    )
    inventory = imported(tmp_path, read_ssh_config(text, Path("config")))
    assert inventory.host("n1").identities == (
        f"~/.ssh/id_{user}",
        "~/.ssh/b",
        "~/my keys/c",
        "/keys/n1-them",
    )
    assert gateway_of(inventory, "n1")[:3] == ("gw", 22, "them")
    text = "Host n1\n  IdentityFile ${NO_SUCH_VARIABLE}/a\n"
    (problem,) = refusal(read_ssh_config(text, Path("config")))
    assert problem.startswith("config:2: host 'n1': ")
    assert "'${NO_SUCH_VARIABLE}' is not set" in problem


def test_a_command_of_match_decides_and_is_not_run(tmp_path: Path) -> None:
    text = (
        f'Host n1\n  User own\nMatch host n* exec "touch {tmp_path}/PWNED"\n  User evil\n'
        "Host n2\n  User late\nHost m1\n  User x\n"
    )
    found = read_ssh_config(text, Path("config"))
    (problem,) = refusal(found)
    assert problem.startswith("config:3: host 'n2': Match exec")
    assert "not run" in problem
    inventory = imported(tmp_path, found, skip_unusable=True)
    assert [(host.name, host.user) for host in inventory.hosts] == [("n1", "own"), ("m1", "x")]
    assert list(tmp_path.iterdir()) == [tmp_path / "imported.toml"]


def test_files_of_the_same_folder_are_included(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "conf.d").mkdir(parents=True)
    (tmp_path / "outside").write_text("Host n9\n  User evil\nHost *\n  User evil\n")
    (home / "conf.d" / "a").write_text("Host n1\n  Port 5\nInclude conf.d/deep/*\n")
    (home / "conf.d" / "b").write_text("Host n2 n3\n  User b\n")
    (home / "conf.d" / "link").symlink_to(tmp_path / "outside")
    text = (
        "Include conf.d/[ab]\nInclude /*/*/*/*/*/*\nInclude ../outside\n"
        "Include conf.d/link\nInclude none/*\nInclude ~no-such-user/*\nInclude conf.d/l*\n"
        "Host n3\n  Include conf.d/c\nHost *\n  User last\n"
    )
    (home / "conf.d" / "c").write_text("Port 7\nHost n1\n  Port 9\n")
    found = read_ssh_config(text, home / "config")
    hosts = imported(tmp_path, found).hosts
    assert [(host.name, host.port, host.user) for host in hosts] == [
        ("n1", 5, "last"),
        ("n2", 22, "b"),
        ("n3", 7, "b"),
    ]
    followed = [note.partition(": ")[2] for note in found.notes if "is followed" in note]
    left = [note for note in found.notes if "not followed" in note]
    assert [note.split(",")[0] for note in followed] == [
        "Include is followed: 'conf.d/[ab]'",
        "Include is followed: 'conf.d/c'",
    ]
    assert len(left) == 7
    (home / "loop").write_text("Include loop\n")
    with pytest.raises(UserError, match="Include: more than 16 deep"):
        read_ssh_config("Include loop\nHost n1\n", home / "config")


def test_a_loop_of_jumps_is_refused_for_its_hosts(tmp_path: Path) -> None:
    text = "Host n1\n ProxyJump a\nHost a\n ProxyJump b\nHost b\n ProxyJump a\nHost m1\n User x\n"
    found = read_ssh_config(text, Path("config"))
    (problem,) = refusal(found)
    assert problem.startswith("config: host 'n1': the route is a loop")
    assert [host.name for host in imported(tmp_path, found, skip_unusable=True).hosts] == ["m1"]


@pytest.mark.parametrize(
    "jump", ["a,a", "a,b,c,d,e,f,g,h,i", "b,deep"], ids=["twice", "nine", "twice-below"]
)
def test_a_route_that_no_inventory_may_have_is_refused_for_its_host(
    tmp_path: Path, jump: str
) -> None:
    text = (
        f"Host n1\n ProxyJump {jump}\nHost b\n ProxyJump deep\nHost deep\n User x\n"
        "Host m1\n User x\n"
    )
    found = read_ssh_config(text, Path("config"))
    (problem,) = refusal(found)
    assert problem.startswith("config: host 'n1': jump = ")
    names = [host.name for host in imported(tmp_path, found, skip_unusable=True).hosts]
    assert "m1" in names
    assert "n1" not in names


def test_a_gateway_without_a_user_does_not_get_that_of_the_hosts(tmp_path: Path) -> None:
    text = (
        "Host gw\n HostName gw.lab\nHost n1 n2\n User lab\n IdentityFile ~/.ssh/l\n ProxyJump gw\n"
    )
    inventory = imported(tmp_path, read_ssh_config(text, Path("config")))
    assert {host.user for host in inventory.hosts} == {"lab"}
    assert gateway_of(inventory, "n1") == ("gw.lab", 22, None, None)


def test_one_gateway_that_is_reached_in_two_ways_becomes_two(tmp_path: Path) -> None:
    text = "n1 ansible_ssh_common_args='-J a@gw'\nn2 ansible_ssh_common_args='-J b@gw'\n"
    inventory = imported(tmp_path, read_ansible(text, Path("hosts")))
    assert gateway_of(inventory, "n1")[2] == "a"
    assert gateway_of(inventory, "n2")[2] == "b"


TWENTY = "\n".join(f"Host n{number}\n  User lab" for number in range(1, 21))
BAD = (
    "Host b1\n  ProxyCommand nc %h %p\nHost b2\n  Port many\nHost b3\n  User 'a b'\n"
    "Host b4\n  HostName 0x7f.1\n"
)


def test_all_unusable_entries_are_named_at_once_or_left_out(call: Call, project: Path) -> None:
    (project / "config").write_text(f"{TWENTY}\n{BAD}")
    refused = call("inventory", "import", "ssh-config", "config", "-o", "lab.toml")
    assert refused.status == 2
    assert not (project / "lab.toml").exists()
    for place in ("config:42: host 'b1'", "config:44: host 'b2'", "host 'b3'", "host 'b4'"):
        assert place in refused.err
    assert "4 entries cannot be taken over; --skip-unusable takes the rest" in refused.err
    command = ("inventory", "import", "ssh-config", "config", "-o", "lab.toml", "--skip-unusable")
    taken = call(*command)
    assert taken.status == 0
    assert "20 hosts, 4 entries left out" in taken.out
    for place in ("left out: config:42: host 'b1'", "left out: config:44: host 'b2'"):
        assert place in taken.err
    assert call("-i", "lab.toml", "inventory", "lint").status == 0
    again = call("-y", *command, "--json")
    assert [row["entry"] for row in again.document["left_out"]] == [
        "host 'b1'",
        "host 'b2'",
        "host 'b3'",
        "host 'b4'",
    ]


def test_unusable_hosts_of_ansible_are_named_at_once_or_left_out(tmp_path: Path) -> None:
    text = """\
[brokers]
n1 ansible_host=10.0.0.1
n2 ansible_user="{{ lookup('env', 'USER') }}"
n3 ansible_connection=winrm
n4 ansible_port=many
n5 ansible_ssh_common_args='-o ProxyCommand="nc -x proxy:1080 %h %p"'
n6 ansible_ssh_common_args='-F other.cfg'
n7 ansible_ssh_common_args='"open'
"""
    found = read_ansible(text, Path("hosts"))
    places = [problem.split("'")[0] for problem in refusal(found)]
    assert places == [f"hosts:{line}: host " for line in range(3, 9)]
    assert [host.name for host in imported(tmp_path, found, skip_unusable=True).hosts] == ["n1"]


def test_an_inventory_that_is_a_program_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text(f"#!/bin/sh\ntouch {tmp_path}/PWNED\n")
    path.chmod(0o755)
    with pytest.raises(UserError, match="a program, which is not run"):
        read_ansible(path.read_text(), path)
    assert list(tmp_path.iterdir()) == [path]


def test_small_files_that_grow_are_bounded(tmp_path: Path) -> None:
    wide = ", ".join(f"k{number}: 1" for number in range(2000))
    merges = "".join(f"m{number}: {{<<: *a}}\n" for number in range(2000))
    with pytest.raises(UserError, match="<< merges more than"):
        read_ansible(f"a: &a {{{wide}}}\n{merges}", tmp_path / "h.yml")
    nested = "g0: &g0 {hosts: {n1: }}\n" + "".join(
        f"g{n}: &g{n} {{children: {{a: *g{n - 1}, b: *g{n - 1}, c: *g{n - 1}}}}}\n"
        for n in range(1, 20)
    )
    with pytest.raises(UserError, match="too many groups"):
        read_ansible(nested, tmp_path / "h.yml")
    many = "".join(f"v{number}=1\n" for number in range(20_000))
    found = read_ansible(f"n[1:4096]\n[all:vars]\n{many}", tmp_path / "h")
    assert "19900 more variables are not taken over" in found.notes[-2]
    stars = f"Host {'*a' * 4000}b\n  User x\nHost {'a' * 60}\n  Port 5\n"
    assert read_ssh_config(stars, tmp_path / "config").hosts[0].variables == {"port": 5}
    for text in ("[" * 5000, "-" * 5000 + "1", "(" * 30 + "1", "0x" + "f" * 4000):
        read_ansible(f"n1\n[all:vars]\nx={text}\n", tmp_path / "h")


MUTATIONS = 400
SEED = 20_261_128
PIECES = ["%", "${", '"', "'", "#", "[", "]", ":", "=", "*", "!", "<<: *a", "&a ", "*a", "\n", " "]
PIECES += ["{", "}", "%h", "-W", "-o", "`", "$(", "\x00", "\u202e", "0x", "~", "@", ",", "|"]


@pytest.mark.parametrize("kind", ["ssh", "ansible"])
def test_a_file_with_random_mistakes_is_read_or_refused(kind: str) -> None:
    draw = random.Random(SEED)
    commands = [f"Host n1\nProxyCommand ssh {arguments}\n" for arguments in GATEWAY_ARGUMENTS]
    files = {
        "ssh": [("config", text) for text in (*CONFIGURATIONS, *commands, BAD, ROWS)],
        "ansible": [*INVENTORIES.items()],
    }[kind]
    for _ in range(MUTATIONS):
        name, text = draw.choice(files)
        for _ in range(draw.randint(1, 5)):
            at = draw.randrange(len(text) + 1)
            piece, cut = draw.choice(PIECES), draw.randint(1, 4)
            text = (
                text[:at] + piece + text[at:]
                if draw.random() < 0.6
                else text[:at] + text[at + cut :]
            )
        assert all(line.isprintable() for line in messages(kind, name, text)), (SEED, text)


def messages(kind: str, name: str, text: str) -> list[str]:
    reader = read_ssh_config if kind == "ssh" else read_ansible
    try:
        found = reader(text, Path(name))
        inventory_text(found, "lab", Path(name), skip_unusable=True)
    except UserError as error:
        return list(error.problems)
    return found.notes


ROWS = """\
Host n1
    Port 2222 # moved
    User lab # mine
    HostName gw # in
    IdentityFile %d/.ssh/a
    IdentityFile ~/.ssh/b
Host n2
    ProxyJump %r@outer
    User them
Host n*
    ProxyJump none
"""


def test_the_users_own_configuration_is_resolved_alike(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(ROWS)
    path = tmp_path / "lab.toml"
    path.write_text(
        'schema = "pubsubctl/inventory/1"\nname = "lab"\n[[hosts]]\nname = "n[1:2]"\n'
        'address = "n[1:2]"\n'
    )
    inventory = load_inventory(path)
    config = UserConfig(inventory, tmp_path / "config")
    n1: Hop = config.settle(inventory.host("n1"))
    assert (n1.address, n1.port, n1.user) == ("gw", 2222, "lab")
    assert n1.identities == ("~/.ssh/a", "~/.ssh/b")
    n2 = config.settle(inventory.host("n2"))
    (name,) = n2.jump
    assert (config.gateways[name].address, config.gateways[name].user) == ("outer", "them")


@real_ssh
def test_included_files_are_evaluated_as_by_ssh(tmp_path: Path) -> None:
    folder = tmp_path / "conf.d"
    folder.mkdir()
    (folder / "a.conf").write_text("User a\nHost n2\n  Port 5\nMatch host n*\n  IdentityFile ~/a\n")
    (folder / "b.conf").write_text(f"Host n*\n  Port 6\n  Include {folder}/c\nHost m1\n  User b\n")
    (folder / "c").write_text("HostName c.%h\nMatch originalhost n3\n  HostName d\n")
    text = (
        f"Host n1 n2\n  Include {folder}/*.conf\n  ProxyJump gw\nInclude {folder}/b.conf\n"
        f"Host n3 m1\n  User late\nMatch host c.n3\n  Include {folder}/a.conf\n"
    )
    path = tmp_path / "config"
    path.write_text(text)
    config = ClientConfig(text, path)
    assert config.names() == ["n1", "n2", "n3", "m1"]
    for name in config.names():
        wanted, settings = by_ssh(path, name), config.settings(name)
        assert settings.hostname == wanted["hostname"][0]
        assert (settings.port or 22) == int(wanted["port"][0])
        assert (settings.user or getpass.getuser()) == wanted["user"][0]
        keys = wanted["identityfile"] if settings.identities else []
        assert list(settings.identities) == keys
        jump = settings.proxy.text if settings.proxy else None
        assert jump == wanted.get("proxyjump", [None])[0]


@real_ssh
def test_a_gateway_that_is_named_with_its_user_is_resolved_with_that_user(tmp_path: Path) -> None:
    text = (
        "Host n1\n  ProxyJump ops@gw:5\nMatch host gw user ops\n  HostName ops.gw\n"
        "Host gw\n  HostName plain.gw\n  User other\n  Port 6\n"
    )
    path = tmp_path / "config"
    path.write_text(text)
    assert by_ssh(path, "ops@gw")["hostname"] == ["ops.gw"]
    inventory = imported(tmp_path, read_ssh_config(text, path))
    assert gateway_of(inventory, "n1") == ("ops.gw", 5, "ops", None)


def test_an_inventory_in_toml_is_imported(tmp_path: Path) -> None:
    source = tmp_path / "hosts.toml"
    text = (
        "[brokers.hosts]\nn1 = { ansible_host = '10.0.0.1', ansible_port = 2222 }\n"
        "[brokers.vars]\nansible_user = 'lab'\n[all.vars]\nansible_user = 'x'\n"
    )
    inventory = imported(tmp_path, read_ansible(text, source))
    host = inventory.host("n1")
    assert (host.address, host.port, host.user) == ("10.0.0.1", 2222, "lab")
    assert host.groups == ("brokers",)


@pytest.mark.parametrize(
    "text, problem",
    [
        ("[g]\nchildren = 'h'\n", ":2: g.children: expected a list, got 'h'"),
        ("[g]\n\nhosts = ['n1']\n", ":3: g.hosts: expected a table, got ['n1']"),
        ("[g.hosts]\nn1 = 'x'\n", ": host 'n1': expected a map"),
        ("[g]\nchildren = [{ a = 1 }]\n", ":2: g.children: { a = 1 } is no name of a group"),
        ("plugin = 'constructed'\n", ":1: plugin 'constructed' is a program, and is not run"),
        ("[g]\nn1 ansible_user=x\n", ": not TOML: Expected '=' after a key"),
    ],
    ids=["children", "hosts", "host", "child", "plugin", "ini"],
)
def test_a_malformed_inventory_in_toml_is_refused(text: str, problem: str) -> None:
    with pytest.raises(UserError) as caught:
        read_ansible(text, Path("hosts.toml"))
    assert caught.value.problems[0].startswith(f"hosts.toml{problem}")


def test_names_that_ansible_skips_or_invents_are_noted() -> None:
    text = "title = 'lab'\n[g]\nchildren = ['broker']\nhosts = { n1 = {} }\n[brokers]\n"
    notes = read_ansible(text, Path("hosts.toml")).notes
    assert "hosts.toml:1: title: is no group, and is skipped" in notes
    undefined = "no group called 'broker' is defined; did you mean 'brokers'?"
    assert f"hosts.toml:3: g.children: {undefined}" in notes


@pytest.mark.parametrize(
    "text, problem",
    [
        ("Host n1\n HostName gw\n ProxyJump edge,gw\n", "the last hop is the host itself"),
        ("Host n1\n ProxyJump gw:%p\n", "'gw:%p' is no hop"),
    ],
    ids=["itself", "port"],
)
def test_a_jump_that_ssh_refuses_is_refused_for_its_host(
    tmp_path: Path, text: str, problem: str
) -> None:
    found = read_ssh_config(f"{text}Host m1\n User x\n", Path("config"))
    (refused,) = refusal(found)
    assert refused.startswith("config:")
    assert refused.endswith(problem)
    assert [host.name for host in imported(tmp_path, found, skip_unusable=True).hosts] == ["m1"]
