"""Tests of files: the project's files are private, and foreign files stay inside their folder.

S-PERM-1 and S-TAR-1. test_deployed.py examines the leftovers of a real deployment.
"""

import ast
import os
import stat
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from bench.run.testbed import ListingRefused, read_listing
from brokerd.agent.host.private_files import make_private_folder, write_private
from brokerd.config import TlsFiles
from brokerd.errors import ControlError
from brokerd.runtime.control_socket import bind_control_socket
from brokerd.runtime.tls import TlsCredentials
from pubsubctl.deployment.authority import (
    CERTIFICATE_FILE,
    CLOCK_ALLOWANCE,
    KEY_FILE,
    LEAF_DAYS,
    Authority,
)
from pubsubctl.errors import UserError
from tests.helpers.certificates import Certificates

ROOT = Path(__file__).parents[2]
PRODUCT = ("bench", "brokerd", "fault_injection", "pubsubctl", "results")


def modes_below(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode)
        for path in [folder, *folder.rglob("*")]
    }


# ---------------------------------------------------------------- S-PERM-1


@pytest.mark.parametrize("kind", ["link", "dangling link", "folder", "fifo"])
def test_an_obstacle_in_place_of_a_private_file_is_refused_and_unchanged(
    tmp_path: Path, kind: str
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    folder = tmp_path / "ours"
    folder.mkdir(mode=0o700)
    for name in ("key", ".key.new"):
        path = folder / name
        if kind == "link":
            path.symlink_to(victim)
        elif kind == "dangling link":
            path.symlink_to(tmp_path / "new")
        elif kind == "folder":
            path.mkdir()
        else:
            os.mkfifo(path)
        with pytest.raises(ControlError, match="not a file of ours"):
            write_private(folder / "key", b"secret")
        assert victim.read_text() == "untouched"
        assert not (tmp_path / "new").exists()
        path.rmdir() if kind == "folder" else path.unlink()


def test_a_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "ours").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ControlError, match="not a folder"):
        write_private(tmp_path / "ours" / "key", b"secret")
    with pytest.raises(Exception, match="not a folder"):
        bind_control_socket(tmp_path / "ours" / "s")
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_private_files_are_inaccessible_to_others_under_any_umask(
    tmp_path: Path, umask: int
) -> None:
    old = os.umask(umask)
    try:
        make_private_folder(tmp_path / "ours")
        write_private(tmp_path / "ours" / "secrets" / "key", b"secret")
        Authority.of(tmp_path / "ours" / "authority")
    finally:
        os.umask(old)
    found = modes_below(tmp_path / "ours")
    assert {mode & 0o077 for mode in found.values()} == {0}, found


# ---------------------------------------------------------------- S-TLS-4: the authority


def test_an_authority_is_made_once_and_trusts_itself_only_with_its_own_key(tmp_path: Path) -> None:
    first, again = Authority.of(tmp_path / "a"), Authority.of(tmp_path / "a")
    other = Authority.of(tmp_path / "b")
    issued = first.issue("d", "broker", "b1")
    assert first.certificate_pem == again.certificate_pem != other.certificate_pem
    assert again.has_issued(issued.certificate_pem)
    assert not other.has_issued(issued.certificate_pem)
    (tmp_path / "a" / KEY_FILE).write_bytes((tmp_path / "b" / KEY_FILE).read_bytes())
    with pytest.raises(UserError, match="not the key of"):
        Authority.of(tmp_path / "a")


def test_an_authority_is_rebuilt_after_an_interrupted_creation(tmp_path: Path) -> None:
    Authority.of(tmp_path / "a")
    (tmp_path / "a" / CERTIFICATE_FILE).unlink()
    issued = Authority.of(tmp_path / "a").issue("d", "client", "c")
    assert Authority.of(tmp_path / "a").has_issued(issued.certificate_pem)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_an_authority_that_others_could_be_is_refused(tmp_path: Path, mode: int) -> None:
    Authority.of(tmp_path / "a")
    (tmp_path / "a" / KEY_FILE).chmod(mode)
    with pytest.raises(UserError, match="0600"):
        Authority.of(tmp_path / "a")


def test_a_damaged_authority_is_named(tmp_path: Path) -> None:
    Authority.of(tmp_path / "a")
    (tmp_path / "a" / CERTIFICATE_FILE).write_text("nonsense")
    with pytest.raises(UserError, match="cannot be used"):
        Authority.of(tmp_path / "a")


def test_certificates_end_within_thirty_days_and_a_longer_one_is_not_to_be_had(
    tmp_path: Path,
) -> None:
    from cryptography import x509

    authority = Authority.of(tmp_path / "a")
    for role in ("broker", "client", "load"):
        pem = authority.issue("d", role, "x").certificate_pem  # type: ignore[arg-type]
        certificate = x509.load_pem_x509_certificate(pem)
        lasts = certificate.not_valid_after_utc - certificate.not_valid_before_utc
        assert lasts - CLOCK_ALLOWANCE <= timedelta(days=LEAF_DAYS)
    with pytest.raises(AssertionError, match="at most 30"):
        authority.issue("d", "broker", "b1", days=31)


def test_a_renewed_certificate_is_loaded_without_a_restart(tmp_path: Path) -> None:
    lab = Certificates(tmp_path)
    files, newer = lab.files("broker", "b0", days_ago=29), lab.files("broker", "b0")
    credentials = TlsCredentials(files)
    before = credentials._server
    credentials._refresh()
    assert credentials._server is before
    Path(files.certificate).write_text("half of a certificate")
    credentials._refresh()
    assert credentials._server is before, "a file that is being written is not taken up"
    for which in ("certificate", "key"):
        Path(getattr(files, which)).write_bytes(Path(getattr(newer, which)).read_bytes())
    credentials._refresh()
    assert credentials._server is not before
    assert isinstance(files, TlsFiles)


def test_certificates_for_tests_are_not_made_by_a_package_that_trusts_them() -> None:
    used = [
        str(path.relative_to(ROOT))
        for top in PRODUCT
        for path in (ROOT / top).rglob("*.py")
        if "trustme" in path.read_text(encoding="utf-8")
    ]
    assert used == []
    assert "trustme" not in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


# ---------------------------------------------------------------- S-TAR-1

HOSTILE_NAMES = [
    "../evil",
    "/etc/passwd",
    "..",
    ".",
    "",
    "a/b",
    "a\\b/../c",
    ".ssh",
    "-rf",
    "name\nwith newline",
    "nul\0byte",
    "x" * 4_096,
    "\u202egpj.exe",
    "~root",
    None,
    7,
]


def row(name: Any, **changes: Any) -> dict[str, Any]:
    return {"name": name, "size_bytes": 10, "sha256": "0" * 64, **changes}


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_host_that_lists_a_hostile_name_is_not_collected_from(name: Any) -> None:
    with pytest.raises(ListingRefused) as refused:
        read_listing([row("stats.jsonl"), row(name)], "h1:/run")
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "rows",
    [
        [row("a.rec", size_bytes=10 << 40)],
        [row("a.rec", size_bytes=-1)],
        [row("a.rec", size_bytes=True)],
        [row("a.rec", size_bytes="10")],
        [row("a.rec", sha256=None)],
        [row("a.rec"), row("a.rec")],
        [row(f"f{number}") for number in range(100_000)],
    ],
)
def test_a_host_that_lists_too_much_or_nonsense_is_not_collected_from(
    rows: list[dict[str, Any]],
) -> None:
    with pytest.raises(ListingRefused):
        read_listing(rows, "h1:/run")


READERS = [ROOT / "pubsubctl" / "runs" / name for name in ("capsules.py", "figure_archives.py")]
"""Modules that read archives file by file: tests/pubsubctl/test_capsules.py and test_claims.py."""


def test_archives_are_read_file_by_file_and_never_unpacked() -> None:
    found = []
    for top in PRODUCT:
        for path in (ROOT / top).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                name = getattr(node, "attr", "") or getattr(node, "id", "")
                imports = node.names if isinstance(node, ast.Import | ast.ImportFrom) else []
                unpacks = name in ("extractall", "extract", "unpack_archive")
                opens = "tarfile" in [alias.name for alias in imports]
                if unpacks or (opens and path not in READERS):
                    found.append(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}")
    assert found == []
