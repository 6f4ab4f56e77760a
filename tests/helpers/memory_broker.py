"""A whole broker over memory streams: core, driver and links are real; disk and sockets are not."""

from typing import Any

import trio

from brokerd.config import SessionParameters
from brokerd.overlay.topology import Topology
from brokerd.overlay.tree_section import TreeSection
from brokerd.protocols.interface import Append, Commit, LogEffect, Persisted, Started
from brokerd.protocols.registry import definition_of, make_protocol, protocol_on
from brokerd.runtime.driver import Driver
from brokerd.runtime.links import Links
from brokerd.runtime.tls import TlsCredentials
from brokerd.sessions.link_faults import read_fault
from brokerd.sessions.session import SelfDescription, SessionTable
from brokerd.units import SECOND_NS
from brokerd.wire.attributes import decode_attribute_table
from tests.helpers.memory_links import MemoryNet, securely
from tests.helpers.memory_log import MemoryLog
from tests.helpers.memory_storage import MemoryMetaStore

_WALL_NS = 10**18
_STEP = 4_096
"""Incarnations that are left out when a loss is accepted."""
_ACCEPTED = 1_000_000


class ImmediateDisk:
    """A disk that commits at once, without a thread."""

    def __init__(self, store: MemoryMetaStore, driver: Driver) -> None:
        self._store = store
        self._driver = driver

    def commit(self, commit: Commit) -> None:
        self._store.commit([(c.table, c.key, c.value) for c in commit.changes])
        if commit.token is not None:
            self._driver.post([Persisted(commit.token)])


class ImmediateLogs:
    """Logs that are written and read at once, without a thread; see LogWriter."""

    def __init__(self, logs: dict[str, MemoryLog], driver: Driver) -> None:
        self._logs = logs
        self._driver = driver

    def take(self, effect: LogEffect) -> None:
        log = self._logs[effect.log]
        log.do([effect])
        if isinstance(effect, Append) and effect.token is not None:
            self._driver.post([Persisted(effect.token)])
        self._driver.post(log.answers())


class MemoryBroker:
    """A broker; a second `run` after cancellation is a restart."""

    def __init__(
        self,
        net: MemoryNet,
        topology: Topology,
        name: str,
        protocol: str = "delta_tree",
        session: SessionParameters | None = None,
        credentials: TlsCredentials | None = None,
    ) -> None:
        self.name = name
        self.records: list[tuple[str, Any]] = []
        self.links: Links
        self.driver: Driver
        self._net = net
        self._topology = topology
        self._protocol = protocol
        self._store = MemoryMetaStore()
        self._logs: dict[str, MemoryLog] = {}
        self._session = session or SessionParameters()
        self._credentials = credentials
        self._lineage = 0

    def lose_disk(self) -> None:
        """Lose all durable state between two runs; the operator accepts the loss."""
        incarnation = self._store.begin("d").incarnation + _STEP
        self._store = MemoryMetaStore(incarnation, "d")
        self._logs = {}
        self._lineage = _ACCEPTED + incarnation

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        number = self._topology.number_of(self.name)
        running = protocol_on(self._topology, self._protocol)
        names = (self.name, *running.possible_peers(self.name))
        near = {self._topology.number_of(name): name for name in names}
        beginning = self._store.begin("d")
        parameters = running.parameters
        definition = definition_of(self._protocol)
        for log in definition.all_logs(self._topology, parameters):
            self._logs.setdefault(log, MemoryLog(log))
        core = make_protocol(
            self._protocol, number, self._topology, parameters, decode_attribute_table
        )
        self.driver = Driver(core, lambda event, details: self.records.append((event, details)))
        own = SelfDescription(
            self._protocol, "d", "t", self.name, number, beginning.incarnation, near
        )
        self.links = Links(
            SessionTable(own),
            self._session,
            near,
            self.driver.post,
            lambda event, details: self.records.append((event, details)),
            clients_behind=core.clients_behind,
            dial=securely(self._net.dial, self._credentials),
            welcome=self._credentials.welcome if self._credentials is not None else None,
        )
        disk: Any = ImmediateDisk(self._store, self.driver)
        logs: Any = ImmediateLogs(self._logs, self.driver)
        self.driver.connect_to(self.links, disk, logs)
        async with trio.open_nursery() as nursery:
            await nursery.start(self.links.run, [self._net.listen(self.name)])
            nursery.start_soon(self.driver.run)
            ends = {name: log.ends for name, log in self._logs.items()}
            wall_ns = _WALL_NS + round(trio.current_time() * SECOND_NS)
            started = Started(
                beginning.incarnation, beginning.recovering, beginning.rows, ends, wall_ns,
                self._lineage,
            )  # fmt: skip
            self.driver.post([started])
            task_status.started()

    def fault(self, verb: str, peer: int | str | None = None) -> None:
        """Apply a fault; the verb is the fault's id."""
        self.links.faults.apply(read_fault(verb, verb, peer, "both", {}, None))
        self.links.faults_changed()

    def heal(self, verb: str) -> None:
        """End a fault."""
        self.links.faults.heal(verb)
        self.links.faults_changed()


def chain(count: int) -> Topology:
    """Return `b0` to `b<count-1>` in a row, δ 1."""
    links = tuple((number, number + 1) for number in range(count - 1))
    return Topology("chain", TreeSection(1), tuple(f"b{number}" for number in range(count)), links)
