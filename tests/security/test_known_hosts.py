"""Tests of the file of known hosts: named hosts, refusals, and new lines."""

import base64
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import paramiko
import pytest

from pubsubctl.errors import UserError
from pubsubctl.hosts.ssh.known_hosts import KEY_TYPES, HostKey, KnownHosts, Standing, fingerprint
from tests.helpers.ssh_login import print_of
from tests.helpers.ssh_server import KeyPair, make_key

with_ssh_keygen = pytest.mark.skipif(
    shutil.which("ssh-keygen") is None, reason="no ssh-keygen here (Debian: openssh-client)"
)
KEYS = {kind: bytes([0, 0, 0, len(kind)]) + kind.encode() + b"key" for kind in KEY_TYPES}


def encoded(kind: str = "ssh-ed25519") -> str:
    return f"{kind} {base64.b64encode(KEYS[kind]).decode()}"


@pytest.mark.parametrize(
    "hosts, address, port, is_named",
    [
        ("n01.lab", "n01.lab", 22, True),
        ("N01.LAB", "n01.lab", 22, True),
        ("n01.lab", "n01.lab", 2222, False),
        ("[n01.lab]:2222", "n01.lab", 2222, True),
        ("[n01.lab]:22", "n01.lab", 22, True),
        ("a,n01.lab,b", "n01.lab", 22, True),
        ("*.lab", "n01.lab", 22, True),
        ("*.lab,!n01.lab", "n01.lab", 22, False),
        ("n0?.lab", "n01.lab", 22, True),
        ("n0[0-9].lab", "n01.lab", 22, False),
        ("::1", "::1", 22, True),
        ("[::1]:2222", "::1", 2222, True),
        ("n01", "n01.lab", 22, False),
    ],
)
def test_host_patterns_match_the_named_addresses_only(
    tmp_path: Path, hosts: str, address: str, port: int, is_named: bool
) -> None:
    path = tmp_path / "known"
    path.write_text(f"\n# comment\n{hosts} {encoded()} a comment\n")
    judgement = KnownHosts.load(path).judge(
        address, port, HostKey("ssh-ed25519", KEYS["ssh-ed25519"])
    )
    assert (judgement.standing is Standing.TRUSTED) == is_named
    assert judgement.standing is not Standing.CHANGED


def hashed_by_paramiko(path: Path) -> None:
    """Replace the names in a file by hashes."""
    words = [line.partition(" ") for line in path.read_text().splitlines()]
    lines = [f"{paramiko.HostKeys.hash_host(name)} {key}\n" for name, _, key in words]
    path.write_text("".join(lines))


def hashed_by_ssh_keygen(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-H", "-f", str(path)], check=True, capture_output=True)


def found_by_paramiko(path: Path, name: str) -> bool:
    """Return true if another implementation finds the host in the file."""
    return paramiko.HostKeys(str(path)).lookup(name) is not None


def found_by_ssh_keygen(path: Path, name: str) -> bool:
    done = subprocess.run(["ssh-keygen", "-F", name, "-f", str(path)], check=False)
    return done.returncode == 0


@pytest.mark.parametrize(
    "hash_names, finds",
    [
        pytest.param(hashed_by_paramiko, found_by_paramiko, id="paramiko"),
        pytest.param(
            hashed_by_ssh_keygen, found_by_ssh_keygen, id="ssh-keygen", marks=with_ssh_keygen
        ),
    ],
)
def test_hashed_names_are_those_of_other_tools(
    tmp_path: Path, hash_names: Callable[[Path], None], finds: Callable[[Path, str], bool]
) -> None:
    path = tmp_path / "known"
    first, second = make_key(tmp_path / "first").public, make_key(tmp_path / "second", "rsa").public
    path.write_text(f"[n01.lab]:2222 {first}\nn02.lab {second}\n")
    hash_names(path)
    assert "n01.lab" not in path.read_text()
    known = KnownHosts.load(path)
    ed25519 = HostKey("ssh-ed25519", base64.b64decode(first.split()[1]))
    assert known.judge("n01.lab", 2222, ed25519).standing is Standing.TRUSTED
    assert known.judge("n02.lab", 22, ed25519).standing is Standing.CHANGED
    assert known.judge("n03.lab", 22, ed25519).standing is Standing.UNKNOWN

    known.add("n03.lab", 22, ed25519, "n03")
    assert "n03.lab" not in path.read_text(), "names stay hidden where they were"
    assert KnownHosts.load(path).judge("n03.lab", 22, ed25519).standing is Standing.TRUSTED
    assert finds(path, "n03.lab")
    assert not finds(path, "n04.lab")


def test_adding_a_line_leaves_the_others_alone_and_makes_the_file_private(tmp_path: Path) -> None:
    path = tmp_path / "known"
    before = f"# no newline at the end\nn01 {encoded()}"
    path.write_text(before)
    path.chmod(0o644)
    KnownHosts.load(path).add("::1", 2222, HostKey("ssh-rsa", KEYS["ssh-rsa"]), "n02")
    assert path.read_text() == f"{before}\n[::1]:2222 {encoded('ssh-rsa')} n02\n"
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "line, problem",
    [
        ("n01", "a line has"),
        ("n01 ssh-ed25519", "a line has"),
        ("n01 ssh-ed25519 ???", "not base64"),
        (f"n01 ssh-rsa {encoded().split()[1]}", "not of the type"),
        (f"@unheard n01 {encoded()}", "unknown marker"),
        (f"|1|???|??? {encoded()}", "not base64"),
    ],
)
def test_a_line_that_cannot_be_read_is_the_users_to_mend(
    tmp_path: Path, line: str, problem: str
) -> None:
    path = tmp_path / "known"
    path.write_text(f"\n{line}\n")
    with pytest.raises(UserError, match=f"{path}:2: .*{problem}"):
        KnownHosts.load(path)


def test_a_world_writable_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "known"
    path.write_text("")
    path.chmod(0o666)
    with pytest.raises(UserError, match="all users may write it"):
        KnownHosts.load(path)


def printed_by_ssh_keygen(key: KeyPair) -> str:
    command = ["ssh-keygen", "-lf", f"{key.private}.pub"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    return said.stdout.split()[1]


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
@pytest.mark.parametrize(
    "print_of_other",
    [
        pytest.param(print_of, id="paramiko"),
        pytest.param(printed_by_ssh_keygen, id="ssh-keygen", marks=with_ssh_keygen),
    ],
)
def test_fingerprints_are_those_of_other_tools(
    tmp_path: Path, kind: str, print_of_other: Callable[[KeyPair], str]
) -> None:
    key = make_key(tmp_path / kind, kind)
    assert fingerprint(base64.b64decode(key.public.split()[1])) == print_of_other(key)
