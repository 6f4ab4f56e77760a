"""Stories about files: no write through foreign links, and no fetch of irregular files.

S-PERM-1, S-TAR-1 and S-PIP-1 of the security list.
"""

import hashlib
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import trio

from bench.run.testbed import MOST_BYTES, MOST_FILES, ListingRefused, Testbed, read_listing
from brokerd.agent.agent import list_files
from brokerd.agent.host.server import DEPLOYMENT_FILE, TOPOLOGY_FILE, HostSide
from brokerd.errors import ControlError

SHA = "0" * 64


@pytest.fixture
def host(tmp_path: Path) -> HostSide:
    return HostSide(tmp_path / "root", "n01")


def ask(host: HostSide, command: str, **arguments: Any) -> dict[str, Any]:
    async def story() -> dict[str, Any]:
        return await host.commands()[command](arguments)

    return trio.run(story)


def every_write(host: HostSide) -> Iterator[tuple[Path, str, dict[str, Any]]]:
    """Yield every path that the commands write, with the command."""
    record = {"content": {"deployment_id": "d1"}, "topology": "name = 1\n"}
    yield host.root / DEPLOYMENT_FILE, "write_deployment", record
    yield host.root / TOPOLOGY_FILE, "write_deployment", record
    yield host.root / "secrets" / "key", "write_secret", {"name": "key", "content": b"k"}
    yield (
        host.root / "secrets" / "tls" / "key",
        "write_secret",
        {"name": "tls/key", "content": b"k"},
    )


def test_written_files_are_unreadable_for_other_users(host: HostSide) -> None:
    os.umask(0o000)
    try:
        for _, command, arguments in every_write(host):
            ask(host, command, **arguments)
            ask(host, command, **arguments)  # a second time replaces it
    finally:
        os.umask(0o022)
    assert [path for path, _, _ in every_write(host) if not path.is_file()] == []
    for path in [host.root, *host.root.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("place", ["itself", "its temporary name", "its folder"])
def test_a_link_at_any_path_that_is_written_is_refused(
    host: HostSide, tmp_path: Path, number: int, place: str
) -> None:
    path, command, arguments = list(every_write(host))[number]
    victim = tmp_path / "victim"
    if place == "its folder":
        victim.mkdir(mode=0o755)
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        if path.parent == host.root:
            host.root = host.root.parent / "linked"  # as if it had been resolved before
            path = host.root / path.name
        path.parent.symlink_to(victim)
    else:
        victim.write_text("untouched")
        path.parent.mkdir(mode=0o700, parents=True)
        link = path if place == "itself" else path.with_name(f".{path.name}.new")
        link.symlink_to(victim)
    with pytest.raises(ControlError, match=r"not a file of ours|not a folder"):
        ask(host, command, **arguments)
    if victim.is_file():
        assert victim.read_text() == "untouched"
    else:
        assert list(victim.iterdir()) == []
        assert stat.S_IMODE(victim.stat().st_mode) == 0o755


@pytest.mark.parametrize("name", ["../key", "/etc/key", "a/b/c", "", ".hidden", "a\n", "a" * 70])
def test_a_secret_is_written_to_its_file_only(host: HostSide, name: str) -> None:
    with pytest.raises(ControlError, match="cannot be called"):
        ask(host, "write_secret", name=name, content=b"k")
    assert not host.root.exists()


def test_durable_files_elsewhere_are_private_and_go_with_the_rest(
    host: HostSide, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    (disk / "somebody's").write_text("theirs")

    async def story() -> None:
        ours = Path((await host.use_data_folder(str(disk)))["path"])
        assert (await host.use_data_folder(str(disk)))["path"] == str(ours)
        assert ours.parent == disk
        assert ours.stat().st_mode & 0o777 == 0o700
        (ours / "b1").mkdir()
        (ours / "b1" / "meta").write_text("x")
        assert [
            row for row in (await host.residue("127.0.0.1", [], False))["rows"] if "meta" in row
        ]
        with pytest.raises(ControlError, match="leads elsewhere"):
            await host.use_data_folder(str(tmp_path))
        with pytest.raises(ControlError, match="no such folder"):
            await host.use_data_folder(str(tmp_path / "missing"))
        await host.remove(False)
        assert [path.name for path in disk.iterdir()] == ["somebody's"]
        assert (await host.residue("127.0.0.1", [], False))["rows"] == []
        host.root.mkdir()
        (host.root / "data").symlink_to(disk)
        await host.remove(False)
        assert (disk / "somebody's").read_text() == "theirs"

    trio.run(story)


def test_a_state_folder_of_an_earlier_stay_is_renamed_and_goes_with_the_rest(
    host: HostSide, tmp_path: Path
) -> None:
    (tmp_path / "disk").mkdir()
    folders = [
        host.root / "brokers",
        Path(ask(host, "use_data_folder", folder=str(tmp_path / "disk"))["path"]),
    ]
    for folder in folders:
        state = folder / "p1" / "state"
        for number in (1, 2):
            assert ask(host, "set_state_aside", folder=str(state)) == {}
            state.mkdir(parents=True)
            (state / "lock").write_text(str(number))
            aside = ask(host, "set_state_aside", folder=str(state))["path"]
            assert (Path(aside).name, (Path(aside) / "lock").read_text()) == (
                f"state.former-{number}", str(number),
            )  # fmt: skip
    for other in (tmp_path / "disk", host.root, folders[1]):
        with pytest.raises(ControlError, match="is not below"):
            ask(host, "set_state_aside", folder=str(other))
    ask(host, "remove", purge=False)
    assert ask(host, "residue", address="127.0.0.1", ports=[], purged=False)["rows"] == []


def test_a_link_where_durable_files_should_go_is_refused(host: HostSide, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "target").mkdir()
    (tmp_path / "disk" / host._data_folder_name()).symlink_to(tmp_path / "target")
    with pytest.raises(ControlError, match="move or remove the file at this path"):
        trio.run(host.use_data_folder, str(tmp_path / "disk"))


def test_nothing_outside_the_root_is_read(host: HostSide, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("private")
    host.root.mkdir()
    (host.root / "inside").write_text("log")
    (host.root / "link").symlink_to(tmp_path / "outside")
    assert ask(host, "read_text", path=str(host.root / "inside")) == {"text": "log"}
    for path in (host.root / "link", host.root / ".." / "outside", Path("/etc/hostname")):
        with pytest.raises(ControlError, match="is not below"):
            ask(host, "read_text", path=str(path))


HOSTILE = [
    "../escape",
    "/etc/cron.d/x",
    "a/../../b",
    ".ssh",
    "",
    "-rf",
    "name\n",
    "na\0me",
    "n" * 4096,
    "späße.log",
    "a b",
    "~root",
    None,
    7,
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_in_a_listing_is_refused_whole(name: object) -> None:
    good = {"name": "stdout.log", "size_bytes": 3, "sha256": SHA}
    with pytest.raises(ListingRefused, match="is not fetched"):
        read_listing([good, {"name": name, "size_bytes": 3, "sha256": SHA}], "n01:/run")


@pytest.mark.parametrize(
    "size", [-1, MOST_BYTES + 1, 1 << 80, "1", None, True], ids=lambda size: str(size)[:12]
)
def test_a_size_that_cannot_be_is_refused(size: object) -> None:
    with pytest.raises(ListingRefused):
        read_listing([{"name": "a.rec", "size_bytes": size, "sha256": SHA}], "n01:/run")


def test_a_million_files_and_the_same_name_twice_are_refused() -> None:
    row = {"name": "a.rec", "size_bytes": 1, "sha256": SHA}
    with pytest.raises(ListingRefused, match="two files called"):
        read_listing([row, row], "n01:/run")
    with pytest.raises(ListingRefused, match=f"at most {MOST_FILES}"):
        read_listing([row] * 1_000_000, "n01:/run")


def test_an_irregular_file_is_not_listed(tmp_path: Path) -> None:
    # Sockets have short paths only, so not below pytest's folder.
    folder = Path(mkdtemp(prefix="list-"))
    (folder / "real.log").write_text("x")
    os.mkfifo(folder / "fifo.log")
    (folder / "link.log").symlink_to("/etc/passwd")
    (folder / "folder.log").mkdir()
    assert [row["name"] for row in list_files(folder)] == ["real.log"]


class ListingAgent:
    """An agent that lists the given names."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    async def files(self, process: str, folder: str) -> dict[str, Any]:
        rows = [
            {"name": name, "size_bytes": 1, "sha256": hashlib.sha256(b"x").hexdigest()}
            for name in self.names
        ]
        return {"folder": "/far/run", "files": rows}


def collected(names: list[str], target: Path, broken: str = "") -> list[str]:
    async def fetch(host: str, source: str, destination: Path, most_bytes: int) -> None:
        if source.endswith(f"/{broken}"):
            raise OSError("no regular file")
        assert most_bytes < 1 << 30
        destination.write_bytes(b"x")

    testbed = Testbed(
        agents={"n01": ListingAgent(names)},  # type: ignore[dict-item]
        brokers={},
        topology=None,  # type: ignore[arg-type]
        topology_digest="",
        protocol="delta_tree",
        deployment_id="d1",
        host_roots={},
        clients_host="n01",
        fetch_file=fetch,
    )
    return trio.run(testbed.collect, "n01", "b1", None, target)


def test_a_hostile_listing_leaves_nothing_here(tmp_path: Path) -> None:
    with pytest.raises(ListingRefused):
        collected(["a.rec", "../../escape"], tmp_path / "raw")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_file_that_cannot_be_fetched_is_named_and_the_others_are_here(tmp_path: Path) -> None:
    damaged = collected(["a.rec", "b.rec", "c.rec"], tmp_path / "raw", broken="b.rec")
    assert damaged == ["n01:/far/run/b.rec"]
    assert sorted(path.name for path in (tmp_path / "raw").iterdir()) == ["a.rec", "c.rec"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the root folder of a process")
def test_a_process_of_a_container_is_no_stray_of_this_machine(tmp_path: Path) -> None:
    host = HostSide(tmp_path / "root", "n01")
    program = "import os, sys; os.chroot(sys.argv[-1]); print(flush=True); sys.stdin.read()"
    mark = ["bench.run.machine", "agent", "--root", str(host.root)]
    command = [sys.executable, "-S", "-c", program, *mark]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with (
        subprocess.Popen([*command, str(tmp_path)], **pipes) as inside,
        subprocess.Popen([*command, "/"], **pipes) as beside,
    ):
        for process in (inside, beside):
            assert process.stdout is not None
            process.stdout.readline()
        assert [row["pid"] for row in ask(host, "observe")["strays"]] == [beside.pid]
        ask(host, "stop_strays")
        assert inside.poll() is None
        inside.communicate()
