"""A whole broker over memory streams: core, driver and links are real; disk and sockets are not."""

from typing import Any

import trio

from brokerd.config import SessionParameters
from brokerd.overlay.topology import Topology
from brokerd.overlay.tree import PrimaryTree
from brokerd.overlay.tree_section import TreeSection
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.protocols.interface import Commit, Event, Persisted, Started
from brokerd.protocols.registry import make_protocol
from brokerd.runtime.driver import Driver
from brokerd.runtime.links import Links
from brokerd.runtime.tls import TlsCredentials
from brokerd.sessions.link_faults import read_fault
from brokerd.sessions.session import SelfDescription, SessionTable
from brokerd.wire.attributes import decode_attribute_table
from tests.helpers.memory_links import MemoryNet, securely
from tests.helpers.memory_storage import MemoryMetaStore


class ImmediateDisk:
    """A disk that commits at once, without a thread."""

    def __init__(self, store: MemoryMetaStore, driver: Driver) -> None:
        self._store = store
        self._driver = driver

    def commit(self, commit: Commit) -> None:
        self._store.commit([(c.table, c.key, c.value) for c in commit.changes])
        if commit.token is not None:
            self._driver.post([Persisted(commit.token)])


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
        self._session = session or SessionParameters()
        self._credentials = credentials

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        number = self._topology.number_of(self.name)
        ball = PrimaryTree(self._topology).ball(number, self._topology.delta + 1)
        near = {other: self._topology.brokers[other] for other in ball}
        beginning = self._store.begin("d")
        parameters = DeltaTreeParameters(delta=self._topology.delta)
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
        self.driver.connect_to(self.links, ImmediateDisk(self._store, self.driver))  # type: ignore[arg-type]
        async with trio.open_nursery() as nursery:
            await nursery.start(self.links.run, [self._net.listen(self.name)])
            nursery.start_soon(self.driver.run)
            events: list[Event] = [
                Started(beginning.incarnation, beginning.recovering, beginning.rows)
            ]
            self.driver.post(events)
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
