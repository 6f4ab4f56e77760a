"""Tests of hostile inventories: a file is refused before any connection or process.

S-INV-2: names, addresses and paths have small alphabets, so that no value of an inventory can
become an option, a command or a path out of the project's folders.
"""

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pubsubctl.errors import UserError
from pubsubctl.inventory.inventory import load_inventory
from tests.pubsubctl.conftest import Call

HEAD = 'schema = "pubsubctl/inventory/1"\nname = "lab"\n'
HOST = '[[hosts]]\nname = "n"\naddress = "10.0.0.1"\n'

# Refused wherever a name, an address, a path or a program is asked for, alone or behind a good one.
EVIL = [
    "; touch PWNED",
    "$(touch PWNED)",
    "`touch PWNED`",
    "| touch PWNED",
    "&& touch PWNED &",
    "\ntouch PWNED\n",
    "'; touch PWNED; '",
    '"; touch PWNED; "',
    "${IFS}touch${IFS}PWNED",
    "{{ lookup('pipe', 'touch PWNED') }}",
    "<(touch PWNED)",
    ">PWNED",
    "*",
    "?",
    "%h",
    "!!",
    "#",
    "\\",
    "\u0000",
    "\u001b[2J",
    "\u202egnp",
    "\u2028",
    "\uff1btouch",
    "a b",
    "a" * 5000,
]
# Refused alone.
ALONE = ["", " ", "-", "--", "-rf", "-oProxyCommand=touch PWNED", "..", "../../PWNED", ".", "~root"]

# Place of a value → a valid value, behind which the corpus appends a hostile text.
PLACES = {
    'name = {}\n[[hosts]]\nname = "n"\naddress = "10.0.0.1"\n': "lab",
    "[[hosts]]\nname = {}\naddress = '10.0.0.1'\n": "n",
    "[[hosts]]\nname = 'n'\naddress = {}\n": "n01.lab.example",
    "[[hosts]]\nname = 'n'\nconnector = {}\naddress = '10.0.0.1'\n": "ssh",
    HOST + "groups = [{}]\n": "brokers",
    HOST + "[groups.{}]\nhosts = ['n']\n": "brokers",
    HOST + "[groups.g]\nhosts = [{}]\n": "n",
    HOST + "vars = {{ user = {} }}\n": "bench",
    HOST + "vars = {{ identity = {} }}\n": "/home/bench/.ssh/id",
    HOST + "vars = {{ python = {} }}\n": "/usr/bin/python3",
    HOST + "vars = {{ bench_address = {} }}\n": "10.0.0.2",
    HOST + "vars = {{ failure_domain = {} }}\n": "rack-a",
    HOST + "vars = {{ root = {} }}\n": "/data/lab",
    HOST + "vars = {{ data_dir = {} }}\n": "~/data",
    HOST + "vars = {{ ports = {} }}\n": "21000-21999",
    HOST + "vars = {{ jump = {} }}\n[gateways.gw]\naddress = 'gw'\n": "gw",
    HOST + "vars = {{ jump = [{}] }}\n[gateways.gw]\naddress = 'gw'\n": "gw",
    "[defaults]\nknown_hosts = {}\n" + HOST: "/home/bench/known_hosts",
    HOST + "[gateways.{}]\naddress = 'gw'\n": "gw",
    HOST + "[gateways.gw]\naddress = {}\n": "10.0.0.3",
    HOST + "[gateways.gw]\naddress = 'gw'\nuser = {}\n": "bench",
    HOST + "[gateways.gw]\naddress = 'gw'\nidentity = {}\n": "/home/bench/.ssh/id",
    HOST + "[ssh]\nconnect_timeout = {}\n": "5s",
}

FOLDERS = ["/", "//", "/x", "/etc/ssh", "/usr/local/lab", "/proc/self", "/dev/shm", "/bin/x"]
FOLDERS += ["~", "~/", "~/.", "~/.ssh", "~/.ssh/x", "~/./.ssh", "~/.gnupg", "~root/x", "~/../x"]
FOLDERS += ["/data/../etc", "/data/x/..", "relative", "./x", "file:///data/x", "/data/\\u00e4"]
FILES = ["/dev/null", "/dev/stdin", "/proc/self/environ", "/home/bench/"]
ADDRESSES = ["0.0.0.0", "::", "255.255.255.255", "224.0.0.1", "ff02::1", "10.0.0.256", "10.0.0.1/8"]
ADDRESSES += ["0x7f.1", "127.1", "2130706433", "0x7f000001", "10.0.0.01", "[::1]", "::1%$(x)"]
ADDRESSES += ["bench@10.0.0.1", "10.0.0.1:22", "ssh://10.0.0.1", "-n01", "n01-", "n01..lab", ".n01"]
ADDRESSES += ["x" * 64, "n,m", "n;m", "fe80::1%", "fe80::1%a/b", "1.2.3"]
RANGES = ["n[1:", "n[2:1]", "n[1:999999]", "n[a:b]", "n[1:2][1:2]", "n[-1:2]", "n[1-2]", "[1:2]]"]
SECRETS = ["password", "passwd", "Passphrase", "ssh_password", "ansible_ssh_pass", "sudo_password"]
SECRETS += ["secret", "token", "api_token", "private_key", "become_passwd"]
OPTIONS = ["proxy_command", "ProxyCommand", "strict_host_keys", "ssh_args", "local_command", "env"]
OPTIONS += ["forward_agent", "host_key_checking", "shell", "sudo", "__class__", "schema"]


def quoted(text: str) -> str:
    """Return a TOML string of exactly this text."""
    plain = all(character.isprintable() and character not in '"\\' for character in text)
    if plain:
        return f'"{text}"'
    return '"' + "".join(f"\\U{ord(character):08X}" for character in text) + '"'


def hostile() -> Iterator[str]:
    """Yield the corpus of whole files."""
    for text, good in PLACES.items():
        head = HEAD.replace('name = "lab"\n', "") if text.startswith("name") else HEAD
        for value in (*EVIL, *ALONE, *(good + evil for evil in EVIL)):
            if "identity" in text and value == f"{good}a b":
                continue  # a key's path may have blanks: no shell reads the path
            yield head + text.format(quoted(value))
    for folder in FOLDERS:
        for key in ("root", "data_dir"):
            for line in ("[defaults]\n{}\n" + HOST, HOST + "[hosts.vars]\n{}\n"):
                yield HEAD + line.format(f'{key} = "{folder}"')
    for file in FILES:
        yield f'{HEAD}[defaults]\nknown_hosts = "{file}"\n{HOST}'
        yield f'{HEAD}{HOST}[hosts.vars]\nidentity = "{file}"\n'
    for address in ADDRESSES:
        yield f'{HEAD}[[hosts]]\nname = "n"\naddress = "{address}"\n'
        yield f'{HEAD}{HOST}[gateways.gw]\naddress = "{address}"\n'
        yield f'{HEAD}{HOST}[hosts.vars]\nbench_address = "{address}"\n'
    for name in RANGES:
        yield f'{HEAD}[[hosts]]\nname = "{name}"\naddress = "10.0.0.1"\n'
        yield f'{HEAD}[[hosts]]\nname = "n"\naddress = "{name}"\n'
        yield f'{HEAD}{HOST}[groups.g]\nhosts = ["{name}"]\n'
    for key in (*SECRETS, *OPTIONS):
        yield f'{HEAD}{HOST}[hosts.vars]\n{key} = "x"\n'
        yield f'{HEAD}{HOST}{key} = "x"\n'
        yield f'{HEAD}[defaults]\n{key} = "x"\n{HOST}'
        yield f'{HEAD}[ssh]\n{key} = "x"\n{HOST}'
        yield f'{HEAD}{HOST}[gateways.gw]\naddress = "gw"\n{key} = "x"\n'
    for value in ("true", "0", "1.5", "[]", "{}", "1979-05-27", '"22"', "65536", "-1", "nan"):
        yield f"{HEAD}{HOST}[hosts.vars]\nport = {value}\n"
        yield f"{HEAD}{HOST}[ssh]\nforks = {value}0\n" if value[0] != '"' else HEAD
    yield HEAD + "[[hosts]]\nname = 'n[1:4000]'\nconnector = 'local'\n" * 300
    yield HEAD + HOST + "[groups.g]\nhosts = [" + "'x[1:4000]'," * 4000 + "]\n"
    yield HEAD + "a = " + "[" * 100_000
    yield HEAD + HOST + "[gateways.a]\naddress = 'a'\njump = 'a'\n"
    yield HEAD + HOST + "#" * (1 << 20)


CORPUS = list(hostile())


@pytest.fixture
def nothing_outside(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that records attempts to connect or to start a process, which are blocked."""
    seen: list[str] = []

    def refuse(name: str) -> None:
        def instead(*arguments: object, **keywords: object) -> None:
            seen.append(f"{name} {arguments}")
            raise AssertionError(f"{name} was called with {arguments}")

        owner, _, method = name.rpartition(".")
        for where in (socket.socket, subprocess.Popen, os):
            if where.__name__ == owner:
                monkeypatch.setattr(where, method, instead)

    for name in ("socket.connect", "socket.connect_ex", "Popen.__init__", "os.system"):
        refuse(name)
    return seen


def test_there_are_enough_hostile_inventories_and_no_two_are_the_same() -> None:
    assert len(set(CORPUS)) >= 1000


def refused(path: Path) -> tuple[str, ...]:
    """Return the reasons for which an inventory is refused; empty if accepted."""
    try:
        load_inventory(path)
    except UserError as error:
        return error.problems
    return ()


def test_each_hostile_inventory_is_refused_as_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_outside: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "evil.toml"
    accepted = []
    for text in CORPUS:
        path.write_text(text, encoding="utf-8")
        problems = refused(path)
        if not problems:
            accepted.append(text)
        assert all(problem.isprintable() for problem in problems), problems
        assert sum(map(len, problems)) < 64 << 10
    assert accepted == []
    assert nothing_outside == []
    assert [row.name for row in tmp_path.rglob("*")] == ["evil.toml"]


@pytest.mark.parametrize("verb", [["deploy", "chain3"], ["down", "--purge"], ["doctor"]])
def test_no_command_starts_anything_from_a_hostile_inventory(
    call: Call, project: Path, tmp_path: Path, nothing_outside: list[str], verb: list[str]
) -> None:
    path = project / "evil.toml"
    before = sorted(tmp_path.rglob("*"))
    for text in CORPUS[::60]:
        path.write_text(text, encoding="utf-8")
        answer = call("-i", str(path), *verb, *(["--only", "inventory"] * (verb == ["doctor"])))
        assert answer.status == (4 if verb == ["doctor"] else 2), answer
        path.unlink()
    assert nothing_outside == []
    assert [row for row in sorted(tmp_path.rglob("*")) if row not in before] == []


def test_a_secret_that_was_written_down_is_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "secret.toml"
    for line in (
        '[hosts.vars]\npassword = "CANARY-7f3a"\n',
        '[hosts.vars]\nidentity = "-----BEGIN OPENSSH PRIVATE KEY-----CANARY-7f3a"\n',
        '[hosts.vars.secret]\nvalue = "CANARY-7f3a"\n',
    ):
        path.write_text(HEAD + HOST + line)
        with pytest.raises(UserError) as caught:
            load_inventory(path)
        assert "CANARY" not in str(caught.value)
        assert "secret.toml:7: hosts[0].vars." in str(caught.value) or ".secret" in str(
            caught.value
        )


def test_the_base_of_the_corpus_is_valid(tmp_path: Path) -> None:
    """A corpus with an invalid base would prove nothing."""
    for text, good in PLACES.items():
        path = tmp_path / "good.toml"
        head = HEAD.replace('name = "lab"\n', "") if text.startswith("name") else HEAD
        path.write_text(head + text.format(quoted(good)))
        assert load_inventory(path).hosts[0].name == "n"
