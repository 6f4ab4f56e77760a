"""A broker as a process: composed from its configuration, and ended in order."""

import gc
import os
import resource
import signal
import sys
import time
import tomllib
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from brokerd.config import BrokerConfig
from brokerd.errors import (
    BrokerError,
    BrokerMustEnd,
    ConfigError,
    ControlError,
    DiskFailed,
    StateLost,
    StorageCorrupt,
)
from brokerd.interpreter import (
    NO_PROCESS,
    NO_PROCESS_ADVICE,
    has_met_process_limit,
    raise_descriptor_limit,
)
from brokerd.model.identity import BrokerNumber, ClientId
from brokerd.model.operator_acts import DECOMMISSION, OperatorAct
from brokerd.model.retention_policy import RetentionPolicy
from brokerd.overlay.topology import Topology
from brokerd.protocols.definition import CoreContext
from brokerd.protocols.extensions import DecommissioningProtocol, Farewell
from brokerd.protocols.interface import (
    LOSS_ACCEPTED,
    LOSS_PROVED,
    STATE_RESTORED,
    STATE_RESTORING,
    BrokerDecommissioned,
    DeliveryProtocol,
    RetentionChanged,
    Started,
    SubscriptionEnded,
    TopologyShrunk,
)
from brokerd.protocols.registry import definition_of, read_topology
from brokerd.runtime.commands import Commands
from brokerd.runtime.connection import CLIENT_MARGIN_BYTES
from brokerd.runtime.control import ControlServer
from brokerd.runtime.disk import Disk, DurableWrites, LogWriter
from brokerd.runtime.driver import Driver
from brokerd.runtime.event_log import EventLog
from brokerd.runtime.growth import Surroundings
from brokerd.runtime.links import Links
from brokerd.runtime.probing import PeerProbes
from brokerd.runtime.state_folder import (
    MOST_CAUSE,
    PreflightError,
    StateFolder,
    describe_obstacle,
    held,
    loss_text,
    record_loss,
)
from brokerd.runtime.stores import Stores, WitnessRows, begin_with_room, log_wait
from brokerd.runtime.streams import dial_tcp, dial_tls
from brokerd.runtime.tls import TlsCredentials, is_loopback
from brokerd.sessions.session import SelfDescription, SessionTable
from brokerd.storage.files import is_transient
from brokerd.storage.meta_store import Beginning
from brokerd.wire.attributes import decode_attribute_table

EXIT_PREFLIGHT: Final = 4
SETTLE_S: Final = 5.0
FOLDER_CHECK_S: Final = 1.0
BACKLOG: Final = 1_024
_COLLECT_AFTER: Final = 10_000
"""Number of surviving new objects after which a collection of cycles runs.

A run of a thousand publications makes as many objects, and frees all of them: by default each run
would be searched, and every hundredth time all objects of a thousand clients.
"""
_TLS: Final = "; off loopback it takes certificates (`tls`)"


def run_broker(mapping: Mapping[str, Any]) -> None:
    """Run a broker until SIGTERM or SIGINT; BrokerConfig defines the content of `mapping`.

    Raises:
        ConfigError: the configuration cannot be used.
        StorageCorrupt: the data on the disk cannot be the broker's own.
        BrokerMustEnd: the other brokers have decommissioned this broker, or its durable state is
            lost (StateLost).
        SystemExit: status 4, if its port or its state folder is in use, its log folder cannot be
            written, or no thread may be started; the reason is written to stderr.
    """
    config = BrokerConfig.from_mapping(dict(mapping), f"broker {mapping.get('broker', '?')}")
    try:
        with held(config) as folder:
            while _run_once(config, folder):
                log_wait(config, "restores its lost state from other brokers")
    except (BrokerError, BaseExceptionGroup, RuntimeError) as raised:
        error = _first(raised)
        if isinstance(error, RuntimeError) and has_met_process_limit(error):
            error = PreflightError(f"{NO_PROCESS}; {NO_PROCESS_ADVICE}")
        in_the_way = isinstance(error, PreflightError) or (
            isinstance(error, ControlError) and error.kind == "busy"
        )
        if in_the_way:
            print(f"broker {config.broker}: {error}", file=sys.stderr)  # noqa: T201
            raise SystemExit(EXIT_PREFLIGHT) from None
        if isinstance(error, BrokerError):
            raise error from raised
        raise


def _run_once(config: BrokerConfig, folder: StateFolder) -> bool:
    """Run a broker until it ends; return True if it begins again to restore lost state."""
    process = BrokerProcess(config)
    try:
        with closing(process.make_stores(folder)) as stores:
            trio.run(process.run, stores, folder)
    except (StateLost, BaseExceptionGroup) as raised:
        if not (process.is_to_restore and isinstance(_first(raised), StateLost)):
            raise
        return True
    return False


class BrokerProcess:
    """The parts of one broker, composed from its configuration.

    Attributes:
        is_to_restore: a loss of state was found, which a new start makes good.

    Raises:
        ConfigError: the parts do not fit together.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._definition = definition_of(config.protocol)
        self._credentials = TlsCredentials(config.tls) if config.tls is not None else None
        if self._credentials is not None:
            self._credentials.check("broker", config.broker, config.deployment_id)
        if config.tls is None:
            for name, address in config.addresses.items():
                if not is_loopback(address):
                    raise ConfigError(
                        f"addresses: {name} = {address!r} is not on this machine{_TLS}"
                    )
        self.is_to_restore = False
        self._commands: Commands
        self._around = Surroundings(config, partial(_read_topology, config))

    @property
    def digest(self) -> str:
        """The digest of the values that all brokers of the deployment must agree on."""
        parameters = asdict(self._around.parameters)
        return self._around.topology.digest(self._config.protocol, parameters)

    def _broker_names(self) -> tuple[str, ...]:
        """Return the names of all brokers by number, also of those that joined or left."""
        return self._around.topology.brokers

    @property
    def logs(self) -> tuple[str, ...]:
        """The names of the broker's logs."""
        return self._definition.all_logs(self._around.topology, self._around.parameters)

    @property
    def keeps_loss(self) -> str:
        return self._definition.keeps_loss(
            self._around.topology, self._around.parameters, self._around.number
        )

    def make_stores(self, folder: StateFolder) -> Stores:
        """Return the durable files in a state folder, not opened yet."""
        around = self._around
        restores = self._definition.restores(around.topology, around.parameters, around.number)
        return Stores(self._config, folder.path, self.logs, self.keeps_loss, restores=restores)

    async def run(
        self,
        stores: Stores,
        folder: StateFolder,
        *,
        task_status: trio.TaskStatus[Links] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run until a signal to stop; started once the broker listens."""
        config = self._config
        if config.core >= 0:
            os.sched_setaffinity(0, {config.core})
        if config.memory_limit_bytes:
            limit_bytes = config.memory_limit_bytes
            resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
        raise_descriptor_limit()
        listeners = await _listen(config.listen, off_loopback=config.tls is not None)
        # From here on a new incarnation exists, in every case.
        try:
            beginning, full_ns = await begin_with_room(stores, config, self.digest)
        except StateLost as error:
            with closing(_open_log(config)) as log:
                log.record("state_lost", {"cause": str(error)})
            raise
        folder.remember()
        log = _open_log(config)
        try:
            if full_ns:
                log.record("disk_has_room", {"after_ns": full_ns})
            if stores.accepted_loss:
                log.record(LOSS_ACCEPTED, stores.accepted_loss)
            if stores.lost:
                log.record(STATE_RESTORING, {"cause": stores.lost})
            await self._run_parts(stores, folder, beginning, listeners, log, task_status)
        except (BrokerError, BaseExceptionGroup) as raised:
            first = _first(raised)
            if isinstance(first, DiskFailed | StorageCorrupt):
                log.record("disk_failed", {"cause": str(first)[:MOST_CAUSE]})
            raise
        finally:
            log.close()

    async def _run_parts(
        self,
        stores: Stores,
        folder: StateFolder,
        beginning: Beginning,
        listeners: list[trio.SocketListener],
        log: EventLog,
        task_status: trio.TaskStatus[Links],
    ) -> None:
        config = self._config
        core = self._make_core()
        driver = Driver(core, partial(self._record, stores, log))
        own = SelfDescription(
            config.protocol,
            config.deployment_id,
            self.digest,
            config.broker,
            self._around.number,
            beginning.incarnation,
            self._around.names,
            ledger=stores.ledger,
        )
        table = SessionTable(own)
        links = self._links(table, core, driver, log)
        check = partial(self._check_folder, folder, log)
        writes = DurableWrites(links.faults, log.record, check)
        volume = stores.volume
        disk = Disk(stores.meta, driver.post, writes)
        rows = WitnessRows(table.witness, stores.ledger, disk)
        rows.recover(beginning.rows)
        links.count_writes = stores.count_writes
        links.keep_witness = rows.write_changed
        links.on_loss = partial(self._end_on_loss, stores, log)
        writer = None
        if volume is not None:
            writer = LogWriter(volume, stores.ends, driver.post, writes)
        driver.connect_to(links, disk, writer)
        probes = PeerProbes(links, own.names, self._is_near)
        links.reached_by = probes.on_reached
        self._commands = commands = Commands(config, core, links, disk, log, own, probes)
        self._connect_commands(commands, stores, core, driver, links, writes)
        if volume is not None and volume.torn_bytes:
            log.record("log_end_cut_off", {"bytes": volume.torn_bytes})
        log.record(
            "started",
            {
                "broker": config.broker,
                "incarnation": beginning.incarnation,
                "recovering": beginning.recovering,
                "protocol": config.protocol,
                "topology_digest": self.digest,
                "pid": os.getpid(),
            },
        )
        gc.collect()
        gc.freeze()
        gc.set_threshold(_COLLECT_AFTER)
        started = self._make_started(stores, beginning)
        if not config.begin_within_ms or beginning.incarnation > 1:
            commands.started.set()
        parts = _Parts(driver, links, disk, writer, commands, probes, log, rows, writes, check)
        patience_s = config.begin_within_ms / 1_000
        await parts.run(started, listeners, config.control_socket, patience_s, task_status)

    def _make_core(self) -> DeliveryProtocol:
        return self._definition.make_core(
            CoreContext(
                broker=self._around.number,
                topology=self._around.topology,
                parameters=self._around.parameters,
                decode_attributes=decode_attribute_table,
                authority=self._config.authority,
            )
        )

    def _make_started(self, stores: Stores, beginning: Beginning) -> Started:
        """Return the first event of the core, with the state of earlier incarnations."""
        return Started(
            beginning.incarnation,
            beginning.recovering or self._config.joining,
            beginning.rows,
            stores.ends,
            time.time_ns(),
            stores.ledger.lineage,
            bool(stores.lost),
            stores.ledger.present.start_number,
        )

    def _connect_commands(
        self,
        commands: Commands,
        stores: Stores,
        core: DeliveryProtocol,
        driver: Driver,
        links: Links,
        writes: DurableWrites,
    ) -> None:
        """Connect the commands of the control socket with the parts that carry them out."""
        commands.accepted_loss, commands.lost = stores.accepted_loss, stores.lost
        commands.loss = stores.proved_loss
        commands.parameters = asdict(self._around.parameters)
        commands.reload_topology = partial(self._reload_topology, driver, links)
        commands.reload_certificate = self._reload_certificate
        commands.discrepancies = lambda: [*self._around.discrepancies(), *writes.obstacles()]
        commands.farewell = partial(self._farewell, core)
        commands.decommission = partial(self._decommission, driver)
        commands.end_subscription = partial(_end_subscription, driver)
        commands.change_retention = partial(_change_retention, driver)
        commands.broker_names = self._broker_names

    def _end_on_loss(self, stores: Stores, log: EventLog, cause: str, incarnation: int) -> None:
        """End this broker after a neighbour proved that it lost state.

        Raises:
            StateLost: always.
        """
        if not stores.restores:  # else the next start records the cause
            log.record("state_lost", {"cause": cause})
        start = stores.ledger.present.start
        record_loss(Path(self._config.state_folder), start, cause, incarnation)
        self.is_to_restore = stores.restores
        raise StateLost(loss_text(self._config, cause, stores.keeps_loss))

    def _record(
        self, stores: Stores, log: EventLog, event: str, details: Mapping[str, Any]
    ) -> None:
        """Write an event of the core; a loss that a client proved is recorded for acceptance."""
        log.record(event, details)
        if event == STATE_RESTORED:
            stores.end_restoration()
        if event == LOSS_PROVED:
            start = stores.ledger.present.start
            folder = Path(self._config.state_folder)
            record_loss(folder, start, str(details["cause"]), must_end=False)
            self._commands.loss = str(details["cause"])

    def _check_folder(self, folder: StateFolder, log: EventLog) -> None:
        """Check that the state folder is the folder that this broker began with.

        Raises:
            BrokerMustEnd: the folder was deleted or replaced.
        """
        try:
            folder.check()
        except BrokerMustEnd as error:
            log.record("state_folder_gone", {"cause": str(error)})
            raise

    def _links(
        self, table: SessionTable, core: DeliveryProtocol, driver: Driver, log: EventLog
    ) -> Links:
        return Links(
            table,
            self._config.session,
            self._around.addresses,
            driver.post,
            log.record,
            is_recovering=lambda: core.status().state == "recovering",
            clients_behind=core.clients_behind,
            dial=dial_tls(self._credentials) if self._credentials is not None else dial_tcp,
            welcome=self._credentials.welcome if self._credentials is not None else None,
            descriptors=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        )

    def _is_near(self, peer: BrokerNumber) -> bool:
        """Return True if a broker is on this machine, so that both can reach each other."""
        address = self._around.addresses.get(peer)
        return address is not None and is_loopback(address) and is_loopback(self._config.listen)

    def _reload_certificate(self) -> str:
        if self._credentials is None:
            raise ControlError("user", f"{self._config.broker} talks plaintext: no certificate")
        return self._credentials.reload()

    def _farewell(self, core: DeliveryProtocol, name: str) -> Farewell:
        number = self._find_decommissioned(name)
        found: Any = core  # see ProtocolDefinition.check_decommission
        protocol: DecommissioningProtocol = found
        return protocol.farewell(number)

    def _decommission(self, driver: Driver, name: str, signature: bytes) -> None:
        number = self._find_decommissioned(name)
        self._check_signed(
            OperatorAct(self._config.deployment_id, DECOMMISSION, name, 0), signature
        )
        driver.post([BrokerDecommissioned(number, signature)])

    def _check_signed(self, act: OperatorAct, signature: bytes) -> None:
        """Check that the deployment's authority has signed an operator's act.

        Raises:
            ControlError: of kind user: this broker has no key of the authority, the act is
                unsigned, or another key has signed it.
        """
        own, authority = self._config.broker, self._config.authority
        subject = f"{act.act} of {act.target[:100]}"
        if not authority.public_key:
            raise ControlError(
                "user",
                f"{own} was started without the authority's key (operator_key), so it takes no "
                f"operator's act: {subject}; `pubsubctl deploy --rolling` starts it with one",
            )
        if not signature:
            raise ControlError("user", f"{subject} is not signed by the deployment's authority")
        if not authority.has_signed(act.act, act.target, act.version, signature):
            raise ControlError(
                "user",
                f"the signature of {subject} is not of the authority of this deployment: act from "
                "the account that deployed",
            )

    def _find_decommissioned(self, name: str) -> BrokerNumber:
        """Return the number of a broker that the protocol can decommission.

        Raises:
            ControlError: of kind user: the broker cannot be decommissioned, or does not exist.
        """
        topology, own = self._around.topology, self._config.broker
        try:
            number = topology.number_of(name[:100])
            self._definition.check_decommissioned(topology, number, topology.name)
        except ConfigError as error:
            raise ControlError("user", str(error)) from None
        if name == own:
            raise ControlError("user", f"{own} is up: send this command to the other brokers")
        return number

    def _reload_topology(self, driver: Driver, links: Links, signature: bytes) -> dict[str, Any]:
        events = self._around.reload(lambda act: self._check_signed(act, signature))
        driver.post(events)
        for event in events:
            if isinstance(event, TopologyShrunk):
                links.forget(event.broker)
        topology = self._around.topology
        return {"brokers": list(topology.present()), "changes": len(events)}


def _end_subscription(driver: Driver, client: ClientId, number: int) -> None:
    driver.post([SubscriptionEnded(client, number)])


def _change_retention(driver: Driver, pubend: int, policy: RetentionPolicy | None) -> None:
    driver.post([RetentionChanged(pubend, policy)])


@dataclass(frozen=True, slots=True)
class _Parts:
    """The concurrent parts of a broker, from its start to a signal."""

    driver: Driver
    links: Links
    disk: Disk
    writer: LogWriter | None
    commands: Commands
    probes: PeerProbes
    log: EventLog
    witnesses: WitnessRows
    writes: DurableWrites
    check_folder: Callable[[], None]

    async def run(
        self,
        started: Started,
        listeners: list[trio.SocketListener],
        control_socket: str,
        patience_s: float,
        task_status: trio.TaskStatus[Links],
    ) -> None:
        server = ControlServer(self.commands.handlers())
        self.commands.faults.publish_event = server.publish_event
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with trio.open_nursery() as nursery:
                await nursery.start(server.serve, control_socket)
                nursery.start_soon(
                    self._begin, started, listeners, patience_s, task_status, nursery
                )
                number = await anext(aiter(signals))
                self.log.record("stopping", {"signal": signal.Signals(number).name})
                await self._stop()
                self.log.record("stopped", {})
                nursery.cancel_scope.cancel()

    async def _begin(
        self,
        started: Started,
        listeners: list[trio.SocketListener],
        patience_s: float,
        task_status: trio.TaskStatus[Links],
        nursery: trio.Nursery,
    ) -> None:
        """Start the parts that depend on other brokers, once these are up or after a timeout."""
        with trio.move_on_after(patience_s):
            await self.commands.started.wait()
        self.commands.started.set()
        nursery.start_soon(self.disk.run)
        if self.writer is not None:
            nursery.start_soon(self.writer.run)
        nursery.start_soon(self.driver.run)
        await nursery.start(self.links.run, listeners, self.commands.faults.expire)
        self.driver.post([started])
        self.commands.is_started = True
        nursery.start_soon(self.probes.run)
        nursery.start_soon(self.commands.sample_for_ever)
        nursery.start_soon(self._watch_folder)
        task_status.started(self.links)

    async def _watch_folder(self) -> None:
        """Check the state folder of a broker that writes nothing, and its disk for stalls.

        Raises:
            BrokerMustEnd: the folder was deleted or replaced.
        """
        while True:
            await trio.sleep(FOLDER_CHECK_S)
            self.writes.record_stalls()
            self.check_folder()

    async def _stop(self) -> None:
        await self.links.stop()
        self.witnesses.write_all()
        with trio.move_on_after(SETTLE_S):
            await self.disk.settle()
            if self.writer is not None:
                await self.writer.settle()


async def _listen(address: str, *, off_loopback: bool) -> list[trio.SocketListener]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ConfigError(
            f"listen = {address!r}: expected an address and a port, as in '127.0.0.1:7000'"
        )
    if not off_loopback and not is_loopback(address):
        raise ConfigError(f"listen = {address!r} is no loopback address{_TLS}")
    try:
        return await trio.open_tcp_listeners(int(port), host=host.strip("[]"), backlog=BACKLOG)
    except OSError as error:
        raise PreflightError(f"cannot listen on {address}: {error.strerror or error}") from None


def _read_topology(config: BrokerConfig) -> Topology:
    path = Path(config.topology_file)
    try:
        topology = read_topology(tomllib.loads(path.read_text(encoding="utf-8")), str(path))
        topology.as_deployed().check_delta(str(path))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    for key, value in topology.session:
        stated = getattr(config.session, key)
        if stated != value:
            raise ConfigError(f"session: {key} = {stated}, but the topology has {value}")
    if config.session.frame_limit_bytes < 8 * CLIENT_MARGIN_BYTES:
        raise ConfigError(
            f"session: frame_limit_bytes = {config.session.frame_limit_bytes}; "
            f"at least {8 * CLIENT_MARGIN_BYTES}"
        )
    return topology


def _first(error: BaseException) -> BaseException:
    """Return the first error in a group of groups; cancellations caused by it follow the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _open_log(config: BrokerConfig) -> EventLog:
    """Return the event log of a broker.

    Raises:
        PreflightError: its log folder cannot be written.
        OSError: the disk has no room, or no file descriptor is free.
    """
    folder = Path(config.log_folder)
    try:
        return EventLog(folder)
    except OSError as error:
        if is_transient(error):
            raise
        raise PreflightError(describe_obstacle(folder, error)) from None
