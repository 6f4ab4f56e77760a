"""`spark up|status|down`: a standalone Spark cluster on the hosts of an inventory.

The first host gets the master, and every host a worker. Workers read runs and write tables in
place, so every host has the folder of results, this program and its Python under the same paths as
this machine. All of that is checked before the start.
"""

import json
import secrets
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from brokerd.agent.host.private_files import write_private
from brokerd.interpreter import module_command
from pubsubctl.console.console import Progress
from pubsubctl.errors import HostError, PreflightFailed, PubsubctlError
from pubsubctl.hosts.connectors.base import Connector
from pubsubctl.hosts.hosts import Lab

PROJECT: Final = Path(__file__).parents[2]
MODULE: Final = "results.checker.cluster_host"
TIMEOUT_S: Final = 180.0
_SAME: Final = {"python": "Python", "pyspark": "PySpark"}


@dataclass(frozen=True)
class Cluster:
    """The running parts of a cluster.

    Attributes:
        master: its URL; "" without a master.
        workers: the hosts with a worker.
        missing: the hosts of the inventory without a worker.
        changed: True if a process was started or ended.
    """

    master: str
    workers: tuple[str, ...]
    missing: tuple[str, ...] = ()
    changed: bool = False

    def row(self) -> dict[str, Any]:
        """Return a mapping for JSON."""
        return {
            "master": self.master or None, "workers": [*self.workers],
            "missing": [*self.missing], "changed": self.changed,
        }  # fmt: skip


class SparkCluster:
    """The cluster of an inventory.

    Args:
        results: the folder of runs, which all hosts have.
    """

    def __init__(self, lab: Lab, results: Path) -> None:
        self._lab = lab
        self.folder = results.resolve() / f".spark-{lab.inventory.name}"

    async def up(self, progress: Progress, memory: str, cores: int | None) -> Cluster:
        """Start the missing parts.

        Raises:
            PreflightFailed: a host cannot take part; names all such hosts with reasons.
            HostError: a process did not start; everything started here is ended again.
        """
        self._prepare()
        progress.phase("looking at hosts")
        found = await self._call_all("facts")
        self._refuse(found)
        first, *_ = self._lab.connectors
        changed = False
        try:
            progress.phase(f"starting the master on {first.host.name}")
            master = await self._call(
                first, "start", "master", "master", first.address, "--port", "0"
            )
            changed |= bool(master["changed"])
            url = str(master["url"])
            for connector in self._lab.connectors:
                name = connector.host.name
                progress.phase(f"starting a worker on {name}")
                given = ["--memory", memory, *(["--cores", str(cores)] if cores else []), url]
                worker = await self._call(
                    connector, "start", f"worker-{name}", "worker", connector.address, *given
                )
                changed |= bool(worker["changed"])
        except PubsubctlError:
            await self.down()
            raise
        total = sum(cores or int(each["cores"]) for each in found.values())
        self._remember(url, memory, total)
        return Cluster(url, tuple(found), changed=changed)

    async def status(self) -> Cluster:
        """Return the running parts."""
        if not self.folder.is_dir():
            return Cluster("", (), tuple(row.host.name for row in self._lab.connectors))
        first, *_ = self._lab.connectors
        master = await self._call(first, "status", "master")
        there: list[str] = []
        missing: list[str] = []
        for connector in self._lab.connectors:
            name = connector.host.name
            worker = await self._call(connector, "status", f"worker-{name}")
            (there if worker.get("url") else missing).append(name)
        return Cluster(str(master.get("url", "")), tuple(there), tuple(missing))

    async def down(self) -> Cluster:
        """Stop all processes of the cluster on all hosts, and remove its files."""
        if not self.folder.is_dir():
            return Cluster("", ())
        changed = False
        url = (await self.status()).master
        for connector in self._lab.connectors:
            answer = await self._call(connector, "stop", f"worker-{connector.host.name}")
            changed |= bool(answer["changed"])
        first, *_ = self._lab.connectors
        changed |= bool((await self._call(first, "stop", "master"))["changed"])
        shutil.rmtree(self.folder)
        if url:
            from results.checker.cluster import cluster_file

            cluster_file(url).unlink(missing_ok=True)
        return Cluster("", (), changed=changed)

    def _prepare(self) -> None:
        """Create the private folder with the shared settings, a secret among them."""
        from results.checker.cluster_host import SETTINGS

        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (self.folder / SETTINGS).is_file():
            return
        settings = {
            "spark.authenticate": "true",
            "spark.authenticate.secret": secrets.token_hex(32),
            "spark.network.crypto.enabled": "true",
            "spark.ui.killEnabled": "false",
        }
        text = "".join(f"{name} {value}\n" for name, value in settings.items())
        write_private(self.folder / SETTINGS, text.encode())

    def _remember(self, url: str, memory: str, cores: int) -> None:
        """Record the cluster for sessions of this user."""
        from results.checker.cluster import cluster_file
        from results.checker.cluster_host import SETTINGS

        lines = (self.folder / SETTINGS).read_text(encoding="utf-8").splitlines()
        about = {
            "settings": dict(line.split(" ", 1) for line in lines),
            "memory": memory,
            "cores": cores,
        }
        path = cluster_file(url)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, json.dumps(about).encode())

    def _refuse(self, found: Mapping[str, Mapping[str, Any]]) -> None:
        from results.checker.cluster_host import facts

        if problems := problems_of(found, facts(self.folder), self.folder):
            raise PreflightFailed(*problems)

    async def _call_all(self, verb: str) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}

        async def query(connector: Connector) -> None:
            found[connector.host.name] = await self._call(connector, verb)

        await self._lab.on_all(query)
        return {row.host.name: found[row.host.name] for row in self._lab.connectors}

    async def _call(self, connector: Connector, verb: str, *words: str) -> dict[str, Any]:
        """Return a host's answer to a verb of `results.checker.cluster_host`."""
        command = ["env", f"PYTHONPATH={PROJECT}", *module_command(MODULE, verb)]
        done = await connector.run([*command, str(self.folder), *words], TIMEOUT_S)
        lines = done.stdout.decode("utf-8", "replace").strip().splitlines()
        try:
            answer: dict[str, Any] = json.loads(lines[-1])
        except (IndexError, ValueError):
            output = done.stderr.decode("utf-8", "replace").strip().splitlines()
            if verb == "facts":
                return {"nothing": output[-1][:200] if output else f"status {done.status}"}
            raise HostError(
                f"host {connector.host.name}: {MODULE} {verb}: {output[-1:] or done.status}"
            ) from None
        if "refused" in answer:
            raise HostError(f"host {connector.host.name}: {answer['refused']}")
        return answer


def problems_of(
    found: Mapping[str, Mapping[str, Any]], here: Mapping[str, Any], folder: Path
) -> Sequence[str]:
    """Return the reasons for which hosts cannot take part, a sentence for each reason.

    Args:
        found: facts by host.
        here: the facts of this machine.
    """
    problems = []
    for host, facts in found.items():
        if "nothing" in facts:
            problems.append(
                f"host {host}: it cannot run this program ({facts['nothing']}); Spark's workers "
                f"need {sys.executable} and {PROJECT} there, under the same paths"
            )
            continue
        for key, word in _SAME.items():
            if facts[key] != here[key]:
                problems.append(
                    f"host {host}: {word} {facts[key] or 'is missing'}, here {here[key]}; all of "
                    "a cluster need the same"
                )
        if "java_refused" in facts:
            problems.append(f"host {host}: {facts['java_refused']}")
        if "folder_refused" in facts or not facts.get("settings"):
            why = facts.get("folder_refused", "files of this machine are not visible there")
            problems.append(
                f"host {host}: {folder}: {why}; workers read runs and write tables there, so all "
                "hosts have to share the folder of results (for example over NFS)"
            )
    return problems
