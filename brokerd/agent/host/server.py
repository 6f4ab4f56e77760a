"""The operations on a host: inspect, lock, write, start, stop and remove.

The same implementation serves hosts of this machine (called as functions) and remote hosts:
`serve_host` answers the same commands as control frames on stdin and stdout, one process per
connection. Resources of that process, the operator lock above all, are released at its end.
"""

import errno
import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil
import trio

from brokerd.agent.client import open_agent_of
from brokerd.agent.facts import machine_facts
from brokerd.agent.host.bootstrap import BLOBS, COMPLETE
from brokerd.agent.host.private_files import (
    holder_text,
    interrupted_command,
    lock_holder,
    make_private_folder,
    operator_lock,
    write_private,
)
from brokerd.agent.paths import read_announcement, socket_folder
from brokerd.agent.processes import ProcessIdentity
from brokerd.errors import ControlError
from brokerd.files import sync_folder
from brokerd.interpreter import module_command
from brokerd.runtime.control import ControlServer, Handler
from brokerd.runtime.state_folder import read_loss

DEPLOYMENT_FILE: Final = "deployment.json"
TOPOLOGY_FILE: Final = "topology.toml"
SECRETS_FOLDER: Final = "secrets"
DATA_LINK: Final = "data"
"""A link to the folder of the brokers' durable files, if not below the root."""
BUNDLE_ENTRIES: Final = re.compile(r"blobs|venv-[0-9a-f]{64}")
"""Entries of a root that are the installed program, which `down` keeps unless it purges."""

STRAY_EXIT_S: Final = 5.0
SILENCE_S: Final = 60.0
"""A controller without a request for this time has ended, regardless of the connection."""
MOST_TEXT_BYTES: Final = 512 * 1024
MOST_ROWS: Final = 500

_SECRET_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}(/[a-z0-9][a-z0-9._-]{0,63})?")


class HostSide:
    """One (logical) host, as a local object.

    Methods that are called by name take and return values that control frames can carry. All raise
    ControlError: `busy` for a resource that another process has, `user` and `internal` for
    impossible requests.

    Args:
        root: the folder with all files of the deployment.
    """

    def __init__(self, root: Path, name: str) -> None:
        # The agent's socket folder is named after the root, so the root must have one spelling.
        self.root = root.expanduser().resolve()
        self.name = name
        self._lock = ExitStack()

    def commands(self) -> dict[str, Handler]:
        def handler(method: Any) -> Handler:
            async def handle(arguments: dict[str, Any]) -> dict[str, Any]:
                result: dict[str, Any] = await method(**arguments)
                return result

            return handle

        names = (
            *("about", "facts", "observe", "ports_in_use", "lock", "unlock", "lock_holder"),
            *("read_deployment", "write_deployment", "write_secret", "read_text"),
            *("recorded_loss", "set_state_aside"),
            *("use_data_folder", "data_room"),
            *("start_agent", "stop_agent", "stop_strays", "remove", "residue", "ping"),
            *("programs", "collect_programs"),
        )
        return {name: handler(getattr(self, name)) for name in names}

    async def ping(self) -> dict[str, Any]:
        """Answer without any effect."""
        return {}

    async def about(self) -> dict[str, Any]:
        """Return `root` and `socket_folder`."""
        return {"root": str(self.root), "socket_folder": str(socket_folder(self.root))}

    async def facts(self) -> dict[str, Any]:
        """Return facts of the machine, as agents report them."""
        folder = self.root
        while not folder.exists():
            folder = folder.parent
        return machine_facts(folder)

    async def observe(self) -> dict[str, Any]:
        """Return the state here: `agent`, `processes`, `deployment`, `strays`, `files`."""
        status = await self._agent_status()
        agent = status["deployment"] if status else None
        rows = status["processes"] if status else {}
        return {
            "agent": agent,
            "processes": {name: row["state"] for name, row in rows.items()},
            "deployment": self._deployment(),
            "strays": [] if agent else [stray.row() for stray in self._strays()],
            "files": bool(self._entries()),
        }

    async def ports_in_use(self, address: str, ports: Sequence[int]) -> dict[str, Any]:
        """Return the occupied `ports`: port, pid, owner."""
        return {"ports": _ports_in_use(address, ports)}

    async def lock(self, purpose: str, who: str, pid: int) -> dict[str, Any]:
        """Exclude other operators, until `unlock` or the end of this process."""
        self._lock.enter_context(operator_lock(self.root, purpose, who, pid))
        return {}

    async def unlock(self) -> dict[str, Any]:
        """Release the lock; no effect if it is not held."""
        self._lock.close()
        return {}

    async def lock_holder(self) -> dict[str, Any]:
        """Return the `holder` of the lock and an `interrupted` command, in words, or ""."""
        holder = holder_text(self.root) if lock_holder(self.root) is not None else ""
        return {"holder": holder, "interrupted": interrupted_command(self.root)}

    async def read_deployment(self) -> dict[str, Any]:
        """Return the recorded deployment, in `deployment`; None if there is none."""
        return {"deployment": self._deployment()}

    async def write_deployment(self, content: Mapping[str, Any], topology: str) -> dict[str, Any]:
        """Record the deployment of this host, and the topology file that its brokers read."""
        write_private(self.root / TOPOLOGY_FILE, topology.encode())
        write_private(self.root / DEPLOYMENT_FILE, json.dumps(content, indent=1).encode())
        return {}

    async def write_secret(self, name: str, content: bytes) -> dict[str, Any]:
        """Write a file that only this user can read, below `secrets`; return its `path`."""
        if not _SECRET_NAME.fullmatch(name):
            raise ControlError("user", f"a secret cannot be called {name[:80]!r}")
        make_private_folder(self.root)
        folder = self.root
        for part in (SECRETS_FOLDER, *name.split("/")[:-1]):
            folder /= part
            make_private_folder(folder)
        path = folder / name.split("/")[-1]
        write_private(path, content)
        return {"path": str(path)}

    async def use_data_folder(self, folder: str) -> dict[str, Any]:
        """Make a folder for brokers' durable files in `folder`; return its `path`.

        `remove` deletes the folder.
        """
        parent = Path(folder).expanduser().resolve()
        if not parent.is_dir():
            raise ControlError("user", f"data_dir {folder}: there is no such folder")
        ours = parent / self._data_folder_name()
        make_private_folder(self.root)
        link = self.root / DATA_LINK
        if os.path.lexists(link) and not (link.is_symlink() and link.readlink() == ours):
            raise ControlError("user", f"{link} leads elsewhere; `pubsubctl down` first")
        if not link.is_symlink():
            link.symlink_to(ours)  # before the folder, so that `remove` finds it in any case
        make_private_folder(ours)
        return {"path": str(ours)}

    async def data_room(self, folder: str) -> dict[str, Any]:
        """Return the folder of durable files, and the `free_bytes` of its disk.

        The folder is below `folder` if not below the root.
        """
        there = Path(folder).expanduser() if folder else self.root
        while not there.exists():
            there = there.parent
        disk = os.statvfs(there)
        return {"folder": str(there), "free_bytes": disk.f_bavail * disk.f_frsize}

    def _data_folder_name(self) -> str:
        return f"pubsubctl-{hashlib.blake2b(str(self.root).encode(), digest_size=4).hexdigest()}"

    def _remove_data(self, link: Path) -> None:
        ours = link.readlink()
        if ours.name == self._data_folder_name() and ours.is_dir() and not ours.is_symlink():
            shutil.rmtree(ours)

    async def recorded_loss(self, folder: str) -> dict[str, Any]:
        """Return the loss that a broker's state folder records, in `number` and `cause`.

        The result is empty if none is recorded.
        """
        loss = read_loss(Path(folder))
        return {"number": loss.number, "cause": loss.cause} if loss.cause else {}

    async def set_state_aside(self, folder: str) -> dict[str, Any]:
        """Rename a broker's state folder; return the new `path`; empty if there is no folder.

        `remove` deletes the folder as before.
        """
        path = Path(folder).resolve()
        ours = self.root, (self.root / DATA_LINK).resolve()
        if not any(path.is_relative_to(each) and path != each for each in ours):
            raise ControlError("user", f"{folder} is not below {self.root}")
        if not path.is_dir():
            return {}
        numbers = itertools.count(1)
        aside = next(
            other
            for number in numbers
            if not os.path.lexists(other := path.with_name(f"{path.name}.former-{number}"))
        )
        path.rename(aside)
        sync_folder(path.parent)
        return {"path": str(aside)}

    async def read_text(self, path: str, most_bytes: int = MOST_TEXT_BYTES) -> dict[str, Any]:
        """Return the end of a text file below the root, in `text`."""
        resolved = Path(path).resolve()
        if not resolved.is_relative_to(self.root):
            raise ControlError("user", f"{path} is not below {self.root}")
        try:
            with resolved.open("rb") as file:
                size_bytes = file.seek(0, os.SEEK_END)
                file.seek(max(0, size_bytes - min(most_bytes, MOST_TEXT_BYTES)))
                return {"text": file.read(MOST_TEXT_BYTES).decode(errors="replace")}
        except OSError as error:
            raise ControlError("user", f"{path}: {error.strerror}") from None

    async def start_agent(self, deployment_id: str, lease_ms: int = 0) -> dict[str, Any]:
        """Start the agent, which outlives this process.

        It begins with its lease. No effect if an agent of this deployment runs already.
        """
        with trio.CancelScope(shield=True):
            await self._start_agent(deployment_id, lease_ms)
        return {}

    async def _start_agent(self, deployment_id: str, lease_ms: int) -> None:
        make_private_folder(self.root)
        command = module_command("bench.run.machine", "agent")
        if sys.flags.isolated:
            command.insert(1, "-I")
        command += ["--root", str(self.root), "--name", self.name, "--deployment", deployment_id]
        if lease_ms:  # a request could come too late: this process may be killed meanwhile
            command += ["--lease-ms", str(lease_ms)]
        result = await trio.run_process(
            command,
            stdin=subprocess.DEVNULL,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            start_new_session=True,  # Ctrl-C at a terminal is for the command, which takes down
        )
        if result.returncode != 0:
            there = await self._agent_status()
            if there is not None and there["deployment"] == deployment_id:
                return
            if there is None and (found := read_announcement(self.root)) is not None:
                identity = ProcessIdentity(found["pid"], found["start_time"])
                if identity.is_alive():
                    raise ControlError(
                        "busy",
                        f"the agent, process {identity.pid}, does not answer: it is stopped, or "
                        f"its machine is busy. `kill -CONT {identity.pid}` continues a stopped "
                        "one; `pubsubctl down` ends it with its brokers",
                    )
            output = result.stderr.decode(errors="replace").strip().splitlines()
            reason = output[-1] if output else f"exit status {result.returncode}"
            raise ControlError("internal", f"the agent did not start: {reason}")

    async def _agent_status(self) -> dict[str, Any] | None:
        """Return the agent's status; None if no agent answers."""
        try:
            async with open_agent_of(self.root) as agent:
                return await agent.status()
        except ControlError as error:
            if error.kind != "closed":
                raise
            return None

    async def stop_agent(self) -> dict[str, Any]:
        """End the agent and nothing else: its processes run on, for the next agent to adopt."""
        announced = read_announcement(self.root)
        if announced is None:
            return {}
        identity = ProcessIdentity(announced["pid"], announced["start_time"])
        identity.signal(signal.SIGKILL)
        with trio.move_on_after(STRAY_EXIT_S):
            while identity.is_alive():
                await trio.sleep(0.02)
        return {}

    async def stop_strays(self) -> dict[str, Any]:
        """End processes of this root without an agent, and an agent that does not answer."""
        strays = self._strays()
        for stray in strays:
            stray.identity.signal(signal.SIGTERM)
            stray.identity.signal(signal.SIGCONT)  # a frozen process receives nothing else
        for number in (None, signal.SIGKILL):
            if number is not None:
                for stray in strays:
                    stray.identity.signal(number)
            with trio.move_on_after(STRAY_EXIT_S):
                while any(stray.identity.is_alive() for stray in strays):
                    await trio.sleep(0.05)
        return {}

    async def remove(self, purge: bool) -> dict[str, Any]:
        """Remove the deployment's files, and the folder if it is empty then.

        With `purge`, remove the installed program, too.
        """
        for folder in self._socket_folders():
            shutil.rmtree(folder, ignore_errors=True)
        if not self.root.is_dir():
            return {}
        for entry in self._entries(with_bundle=purge):
            try:
                self._remove_entry(entry)
            except OSError as error:
                why = f"{error.filename!r} cannot be removed: {(error.strerror or '').lower()}"
                raise ControlError("busy", f"{entry}: {why}") from error
        if purge:
            self.root.rmdir()
        elif not self._entries(with_bundle=True):
            try:
                self.root.rmdir()
            except OSError:
                pass  # its folder may belong to another user
        return {}

    def _remove_entry(self, entry: Path) -> None:
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
            return
        if entry.name == DATA_LINK and entry.is_symlink():
            self._remove_data(entry)
        entry.unlink()

    async def residue(self, address: str, ports: Sequence[int], purged: bool) -> dict[str, Any]:
        """Return the remains after `remove`: processes, ports, sockets, files."""
        found = [f"process {stray}" for stray in self._strays()]
        found += [_port_text(row) for row in _ports_in_use(address, ports)]
        for folder in self._socket_folders():
            found += [f"socket {path}" for path in folder.iterdir()]
            found += [f"folder {folder}"]
        for entry in self._entries(with_bundle=purged):
            inside = sorted(entry.rglob("*")) if entry.is_dir() else [entry]
            found += [f"file {path}" for path in inside if not path.is_dir()]
        if len(found) > MOST_ROWS:
            found[MOST_ROWS:] = [f"and {len(found) - MOST_ROWS} more"]
        return {"rows": found}

    async def programs(self) -> dict[str, Any]:
        """Return the installed bundles, the latest first."""
        found = [
            (path.stat().st_mtime, path.name.removeprefix("venv-"))
            for path in self._entries(with_bundle=True)
            if path.name.startswith("venv-") and (path / COMPLETE).exists()
        ]
        return {"programs": [name for _, name in sorted(found, reverse=True)]}

    async def collect_programs(self, keep: Sequence[str]) -> dict[str, Any]:
        """Remove bundles except those in `keep`, the deployed bundle and the running bundle."""
        recorded = (self._deployment() or {}).get("program", "")
        wanted = {*keep, recorded, Path(sys.prefix).name.removeprefix("venv-")}
        removed: list[str] = []
        blobs = set(wanted)
        for digest in wanted:
            manifest = self.root / BLOBS / digest
            if manifest.is_file():
                blobs |= set(json.loads(manifest.read_bytes())["files"].values())
        for path in self._entries(with_bundle=True):
            digest = path.name.removeprefix("venv-")
            if path.name != digest and BUNDLE_ENTRIES.fullmatch(path.name) and digest not in wanted:
                shutil.rmtree(path)
                removed.append(path.name)
        for path in sorted((self.root / BLOBS).glob("*")):
            if path.name not in blobs:
                path.unlink()
                removed.append(f"{BLOBS}/{path.name}")
        return {**await self.programs(), "removed": removed[:MOST_ROWS]}

    def _deployment(self) -> dict[str, Any] | None:
        path = self.root / DEPLOYMENT_FILE
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise ControlError(
                "internal", f"{path}: {error}; `pubsubctl down` removes it"
            ) from None
        if not isinstance(content, dict) or "deployment_id" not in content:
            raise ControlError(
                "internal", f"{path}: not a deployment's record; `pubsubctl down` removes it"
            )
        return content

    def _entries(self, *, with_bundle: bool = False) -> list[Path]:
        """Return the entries of the root, without the installed program."""
        try:
            found = sorted(self.root.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [row for row in found if with_bundle or not BUNDLE_ENTRIES.fullmatch(row.name)]

    def _strays(self) -> "list[_Stray]":
        """Return processes of this root: every fork of an agent has the agent's command line.

        A process in a container may have an equal command line, and belongs to another folder.
        """
        found: list[_Stray] = []
        mark = ["bench.run.machine", "agent", "--root", str(self.root)]
        for process in psutil.process_iter(["pid", "cmdline", "name", "uids"]):
            command = process.info["cmdline"] or []
            uids = process.info["uids"]
            if uids is None or uids.effective != os.geteuid():
                continue
            if any(command[at : at + 4] == mark for at in range(len(command))):
                try:
                    identity = ProcessIdentity.of(process.info["pid"])
                except ProcessLookupError:
                    continue
                if identity.shares_root() and identity.is_alive():
                    found.append(_Stray(identity, process.info["name"]))
        return sorted(found, key=lambda stray: stray.identity.pid)

    def _socket_folders(self) -> list[Path]:
        """Return the folders of this root's sockets: the announced folder, and the computed one."""
        announced = read_announcement(self.root)
        places = {socket_folder(self.root)}
        if announced is not None:
            places.add(Path(announced["socket"]).parent)
        return sorted(place for place in places if place.is_dir() and not place.is_symlink())


class _Stray(NamedTuple):
    identity: ProcessIdentity
    name: str

    def row(self) -> dict[str, Any]:
        pid = self.identity.pid
        ports = [
            row.laddr.port
            for row in psutil.net_connections(kind="tcp")
            if row.pid == pid and row.laddr and row.status == psutil.CONN_LISTEN
        ]
        return {"pid": pid, "name": self.name, "ports": sorted(ports)}

    def __str__(self) -> str:
        row = self.row()
        ports = f", port {', '.join(map(str, row['ports']))}" if row["ports"] else ""
        return f"pid {row['pid']} ({row['name']}{ports})"


def serve_host(root: Path, name: str) -> int:
    """Answer host commands on stdin and stdout until either ends; return the exit status."""
    os.umask(0o077)
    # The folder of a login that may end long before the processes that are started here.
    os.environ.pop("XDG_RUNTIME_DIR", None)
    requests, answers = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # prints must not get between the frames
    host = HostSide(root, name)
    heard_ns = time.monotonic_ns()

    def noted(handler: Handler) -> Handler:
        async def handle(arguments: dict[str, Any]) -> dict[str, Any]:
            nonlocal heard_ns
            heard_ns = time.monotonic_ns()
            return await handler(arguments)

        return handle

    async def end_after_silence(scope: trio.CancelScope) -> None:
        while (left_s := SILENCE_S - (time.monotonic_ns() - heard_ns) / 1e9) > 0:
            await trio.sleep(left_s)
        scope.cancel()

    async def serve() -> None:
        stream = trio.StapledStream(
            trio.lowlevel.FdStream(answers), trio.lowlevel.FdStream(requests)
        )
        handlers = {command: noted(handler) for command, handler in host.commands().items()}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end_after_silence, nursery.cancel_scope)
            await ControlServer(handlers).serve_stream(stream)
            nursery.cancel_scope.cancel()

    # The end of the process frees a lock that was not released, and keeps the name of its command.
    trio.run(serve)
    return 0


def _ports_in_use(address: str, ports: Sequence[int]) -> list[dict[str, Any]]:
    refused = [port for port in ports if not _can_listen(address, port)]
    owners = _port_owners() if refused else {}
    return [
        {"port": port, "pid": pid, "owner": owner, "deployment": _deployment_of(pid)}
        for port in refused
        for pid, owner in [owners.get(port, (None, "owner unknown"))]
    ]


def _deployment_of(pid: int | None) -> dict[str, str] | None:
    """Return the deployment of an agent's or broker's process; None for any other process."""
    try:
        words = [] if pid is None else psutil.Process(pid).cmdline()
        root = words[words.index("--root") + 1]
        record = json.loads((Path(root) / DEPLOYMENT_FILE).read_text(encoding="utf-8"))
        return {
            "deployment_id": str(record["deployment_id"]),
            "topology": str(record["topology"]["name"]),
            "inventory": str(record["inventory"]),
            "inventory_file": str(record.get("inventory_file", "")),
        }
    except (psutil.Error, OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def _port_text(row: Mapping[str, Any]) -> str:
    pid = f" by pid {row['pid']}" if row["pid"] is not None else ""
    return f"port {row['port']} is in use{pid} ({row['owner']})"


def _can_listen(address: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as attempt:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind((address, port))
            attempt.listen(1)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise ControlError("user", f"{address}: {error.strerror}") from None
    return True


def _port_owners() -> dict[int, tuple[int | None, str]]:
    """Return local port → pid and command of its owner, listeners before others."""
    owners: dict[int, tuple[int | None, str]] = {}
    connections = psutil.net_connections(kind="tcp")
    for row in sorted(connections, key=lambda row: row.status != psutil.CONN_LISTEN):
        if not row.laddr or (row.laddr.port in owners and owners[row.laddr.port][0] is not None):
            continue
        owners[row.laddr.port] = (row.pid, _command(row.pid))
    return owners


def _command(pid: int | None) -> str:
    if pid is None:
        return "of another user"
    try:
        return " ".join(psutil.Process(pid).cmdline())[:100] or psutil.Process(pid).name()
    except psutil.Error:
        return "already ended"
