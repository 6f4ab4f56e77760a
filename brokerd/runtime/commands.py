"""The control commands of a broker: status, statistics, runs, probes and durable subscriptions."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from brokerd.config import BrokerConfig
from brokerd.errors import ConfigError, ControlError
from brokerd.model.identity import BrokerNumber, Peer, StreamId
from brokerd.model.retention_policy import RetentionPolicy
from brokerd.protocols.extensions import (
    Farewell,
    ListingProtocol,
    StreamRetention,
    SubscriptionState,
    protocol_of,
)
from brokerd.protocols.interface import LOSS_ACCEPTED, STATE_RESTORING, CoreStatus, DeliveryProtocol
from brokerd.runtime.command_arguments import (
    find_peers,
    parse_policy,
    parse_signature,
    take_arguments,
)
from brokerd.runtime.connection import clock_ns
from brokerd.runtime.control import Handler
from brokerd.runtime.disk import Disk
from brokerd.runtime.event_log import EventLog, digests_of
from brokerd.runtime.fault_commands import FaultCommands
from brokerd.runtime.links import Links
from brokerd.runtime.listings import (
    describe_retained,
    describe_retention,
    describe_subscription,
    refuse_release,
)
from brokerd.runtime.memory import FreeMemory, private_bytes, resident_bytes
from brokerd.runtime.probing import PeerProbes
from brokerd.runtime.program import read_own_program
from brokerd.runtime.threads import run_in_thread
from brokerd.sessions.session import SelfDescription

SAMPLE_S: Final = 1.0
DISK_POLL_S: Final = 0.02
END_TIMEOUT_S: Final = 8.0
EVENTS_SCHEMA: Final = "pubsubctl/events/4"
"""Version of the events of a run. Since version 2 a broker logs what a fault has absorbed. Since
version 3 the last event repeats the last counters."""


class Commands:
    """The control commands of one broker.

    Attributes:
        faults: the commands for faults of its links.
        farewell: returns the consequences of the decommission of a broker, by name.
        decommission: decommissions a broker by a signed act; `farewell` reports when that is
            durable.
        end_subscription: ends a subscription, by client and number.
        change_retention: changes the policy of a pubend here; None: as the topology states it.
        broker_names: returns the names of all brokers of the topology, by number.
        started: set once the broker need not wait for the others any more.
        is_started: True once the core was started with its state on disk. Before, `status`
            reports "recovering", and `drain` waits.
        reload_topology: reads the topology file again, by a signed act; returns its content.
        loss: cause of a loss of state that a client has proved; "" if there is none.
        lost: the cause of the loss that this broker makes good from other brokers; "": none.
        accepted_loss: the loss that an operator's act accepted at the start of this broker. The
            event log of every run repeats the act, because gaps of the run may be due to the loss.
        reload_certificate: reads the certificate again; returns its SHA-256.
        discrepancies: returns the differences of the files from the running configuration, and the
            reasons for which durable writes wait, in words.
    """

    def __init__(
        self,
        config: BrokerConfig,
        core: DeliveryProtocol,
        links: Links,
        disk: Disk,
        log: EventLog,
        own: SelfDescription,
        probes: PeerProbes,
    ) -> None:
        self.faults = FaultCommands(config, links, log, own)
        self.farewell: Callable[[str], Farewell] = lambda _name: Farewell(is_known=False)
        self.decommission: Callable[[str, bytes], None] = lambda _name, _signature: None
        self.end_subscription: Callable[[str, int], None] = lambda _client, _number: None
        self.change_retention: Callable[[int, RetentionPolicy | None], None] = lambda _n, _p: None
        self.broker_names: Callable[[], Sequence[str]] = tuple
        self.reload_topology: Callable[[bytes], dict[str, Any]] = lambda _signature: {}
        self.reload_certificate: Callable[[], str] = str
        self.discrepancies: Callable[[], list[str]] = list
        self.started = trio.Event()
        self.is_started = False
        self.loss = ""
        self.accepted_loss: Mapping[str, Any] | None = None
        self.lost = ""
        self.parameters: Mapping[str, Any] = {}
        self._config = config
        self._core = core
        self._links = links
        self._disk = disk
        self._log = log
        self._own = own
        self._probes = probes

    def handlers(self) -> dict[str, Handler]:
        return {
            **self.faults.handlers(),
            "begin": self._begin,
            "status": self._status,
            "statistics": self._statistics,
            "subscriptions": self._subscriptions,
            "retained": self._retained,
            "end_subscription": self._end_subscription,
            "retention": self._retention,
            "set_retention": self._set_retention,
            "begin_run": self._begin_run,
            "end_run": self._end_run,
            "drain": self._drain,
            "probe": self._probe,
            "probe_disk": self._probe_disk,
            "farewell": self._farewell,
            "decommission": self._decommission,
            "reload_topology": self._reload_topology,
            "reload_certificate": self._reload_certificate,
        }

    # ------------------------------------------------------------ in the background

    async def sample_for_ever(self) -> None:
        """Write statistics once a second, and return unused memory to the kernel."""
        memory = FreeMemory()
        while True:
            await trio.sleep(SAMPLE_S)
            self._log.sample({**self._counters(), **_resident(memory.look())})

    # ------------------------------------------------------------ looking

    async def _begin(self, arguments: dict[str, Any]) -> dict[str, Any]:
        take_arguments(arguments)
        self.started.set()
        return {}

    async def _status(self, arguments: dict[str, Any]) -> dict[str, Any]:
        take_arguments(arguments)
        if not self.started.is_set():
            raise ControlError("busy", "it waits for the others before it begins")
        peers = self._links.session_peers()
        core = replace(self._core_status(), detail=self._core.detail()).to_mapping(self._own.names)
        return {
            **core,
            "discrepancies": [*core["discrepancies"], *self.discrepancies()],
            "name": self._own.name,
            "pid": os.getpid(),
            "incarnation": self._own.incarnation,
            "program": read_own_program().to_mapping(),
            "protocol": self._own.protocol,
            "deployment_id": self._own.deployment_id,
            "topology_digest": self._own.topology_digest,
            "sessions": [self._own.names[peer] for peer in peers if isinstance(peer, int)],
            "clients": sum(isinstance(peer, str) for peer in peers),
            "probed": not self._probes.missing(),
            "unprobed": {
                self._own.names[number]: why for number, why in self._probes.missing().items()
            },
            "obstacles": {
                self._own.names[number]: why
                for number, why in self._links.obstacles.items()
                if number in self._own.names
            },
            "faults": [fault.fault_id for fault in self._links.faults],
            "run_id": self._log.run_id,
            "loss": self.loss,
            "written": self._count_written(),
            "witnessed": {
                self._own.names[peer]: [mark.commits, mark.groups]
                for peer, mark in self._links.witness.marks.items()
                if peer in self._own.names
            },
        }

    def _count_written(self) -> list[int]:
        """Return the durable writes of this broker, of rows and of logs."""
        ledger = self._own.ledger
        if ledger is None:
            return [0, 0]
        self._links.count_writes()
        return [ledger.commits, ledger.groups]

    async def _statistics(self, arguments: dict[str, Any]) -> dict[str, Any]:
        take_arguments(arguments)
        return {"t_ns": time.monotonic_ns(), **self._all_counters()}

    async def _subscriptions(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """List the subscriptions of this broker's clients, connected or not."""
        take_arguments(arguments)
        found = self._list_subscriptions()
        brokers = self.broker_names()
        return {"subscriptions": [describe_subscription(each, brokers) for each in found]}

    async def _retained(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """List the events that pubends here retain, in all and behind acknowledged ticks."""
        (after,) = take_arguments(arguments, after=(dict, {}))
        brokers = self.broker_names()
        wanted: dict[StreamId, Sequence[int]] = {}
        for name, ticks in after.items():
            broker, _, pubend = str(name).rpartition(".")
            is_stream = broker in brokers and pubend.isdecimal()
            if not (is_stream and type(ticks) is list and all(type(each) is int for each in ticks)):
                raise ControlError("user", f"after: {name!r} is no stream with ticks"[:200])
            wanted[StreamId(brokers.index(broker), int(pubend), 0)] = ticks
        found = self._listing_core().list_retained(wanted)
        return {"retained": [describe_retained(each, brokers) for each in found]}

    async def _end_subscription(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """End a subscription; the answer follows when that is durable."""
        client, number, force = take_arguments(
            arguments, client=str, number=int, force=(bool, False)
        )
        subject = f"subscription {number} of client {client[:100]!r}"
        found = self._find_subscription(client, number)
        if found is None:
            raise ControlError("user", f"{self._own.name} has no {subject}")
        if found.away_ns is None and not force:
            raise ControlError(
                "user", f"{subject} is {found.mode} at {self._own.name}: its client is connected"
            )
        self.end_subscription(client, number)
        with trio.move_on_after(END_TIMEOUT_S) as waiting:
            while self._find_subscription(client, number) is not None:
                await trio.sleep(DISK_POLL_S)
        if waiting.cancelled_caught:
            raise ControlError("busy", f"{subject} is still there: its client has made it again")
        self._log.record("subscription_ended", {"client": client, "number": number})
        return {"client": client, "number": number}

    async def _retention(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """List the policies of the pubends here, and the events that a proposed one releases."""
        (text,) = take_arguments(arguments, policy=(str, ""))
        proposed = parse_policy(text) if text else None
        found = self._listing_core().list_retention(clock_ns(), proposed)
        brokers = self.broker_names()
        return {"retention": [describe_retention(each, brokers) for each in found]}

    async def _set_retention(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Change the policy of a pubend; the answer follows when that is durable and in force."""
        pubend, text, force = take_arguments(
            arguments, pubend=int, policy=(str, ""), force=(bool, False)
        )
        found = self._find_retention(pubend, None)
        policy = parse_policy(text) if text else None
        wanted = found.default if policy is None else policy
        proposed = self._find_retention(pubend, wanted)
        if proposed.early > found.early and not force:
            raise ControlError("user", refuse_release(f"{self._own.name}.{pubend}", proposed))
        self.change_retention(pubend, policy)
        with trio.move_on_after(END_TIMEOUT_S) as waiting:
            while self._find_retention(pubend, None).policy != wanted:
                await trio.sleep(DISK_POLL_S)
        if waiting.cancelled_caught:
            raise ControlError("busy", f"{wanted} of pubend {pubend} is not durable yet")
        return {"pubend": pubend, "policy": str(wanted), "before": str(found.policy)}

    def _find_retention(self, pubend: int, proposed: RetentionPolicy | None) -> StreamRetention:
        found = self._listing_core().list_retention(clock_ns(), proposed)
        for each in found:
            if each.stream.publisher == pubend:
                return each
        numbers = f"0 to {len(found) - 1}" if found else "it has none"
        raise ControlError("user", f"{self._own.name} has no pubend {pubend}: {numbers}")

    def _find_subscription(self, client: str, number: int) -> SubscriptionState | None:
        named = client, number
        found = self._list_subscriptions()
        return next((each for each in found if (each.client, each.number) == named), None)

    def _list_subscriptions(self) -> Sequence[SubscriptionState]:
        return self._listing_core().list_subscriptions(clock_ns())

    def _listing_core(self) -> ListingProtocol:
        core = protocol_of(self._core)
        if not isinstance(core, ListingProtocol):
            subject = f"{self._own.protocol} keeps no list; durable does"
            raise ControlError("user", subject)
        if self._core_status().state == "recovering":
            raise ControlError("busy", "it reads the state of its earlier incarnation")
        return core

    async def _reload_topology(self, arguments: dict[str, Any]) -> dict[str, Any]:
        (signature,) = take_arguments(arguments, signature=(str, ""))
        answer = self.reload_topology(parse_signature(signature))
        self._probes.keep(self._own.names)
        return answer

    async def _farewell(self, arguments: dict[str, Any]) -> dict[str, Any]:
        (broker,) = take_arguments(arguments, broker=str)
        return asdict(self.farewell(broker))

    async def _decommission(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Decommission a broker; the answer follows when the act is durable here."""
        broker, signature = take_arguments(arguments, broker=str, signature=(str, ""))
        self.decommission(broker, parse_signature(signature))
        while not self.farewell(broker).is_known:
            await trio.sleep(DISK_POLL_S)
        self._log.record("decommissioned", {"broker": broker})
        return {"broker": broker}

    async def _reload_certificate(self, arguments: dict[str, Any]) -> dict[str, Any]:
        take_arguments(arguments)
        try:
            sha256 = self.reload_certificate()
        except ConfigError as error:
            raise ControlError("user", str(error)) from None
        self._log.record("certificate_reloaded", {"sha256": sha256})
        return {"certificate_sha256": sha256}

    def _all_counters(self) -> dict[str, Any]:
        return {**self._counters(), **_resident(resident_bytes())}

    def _counters(self) -> dict[str, Any]:
        return {
            **self._core.statistics(),
            **self._links.counters,
            "outbox_bytes": self._links.waiting_bytes(),
            "cpu_s": time.process_time(),
        }

    # ------------------------------------------------------------ runs

    async def _begin_run(self, arguments: dict[str, Any]) -> dict[str, Any]:
        run_id, folder = take_arguments(arguments, run_id=str, folder=str)
        if not os.path.isabs(folder):
            raise ControlError("user", f"folder {folder[:200]!r} is not an absolute path")
        if self._log.run_id != run_id:  # a repeated request has no second beginning
            try:
                self._log.begin_run(run_id, Path(folder))
            except OSError as error:
                raise ControlError("user", f"{folder[:200]}: {error.strerror}") from None
            self._record_beginning(run_id)
        return {
            "t_ns": time.monotonic_ns(),
            "pid": os.getpid(),
            "accepted_loss": dict(self.accepted_loss) if self.accepted_loss else None,
        }

    def _record_beginning(self, run_id: str) -> None:
        begun = {
            "run_id": run_id,
            "broker": self._own.name,
            "schema": EVENTS_SCHEMA,
            "parameters": dict(self.parameters),
        }
        self._log.record("run_begun", begun)
        if self.accepted_loss is not None:
            self._log.record(LOSS_ACCEPTED, self.accepted_loss)
        if self.lost:
            self._log.record(STATE_RESTORING, {"cause": self.lost})
        for each in self._list_changed_retention():
            self._log.record(each.record.event, each.record.details)

    def _list_changed_retention(self) -> list[StreamRetention]:
        """Return the policies that are not the topology's, for the log of a run."""
        core = protocol_of(self._core)
        if not isinstance(core, ListingProtocol):
            return []
        return [each for each in core.list_retention(clock_ns()) if each.policy != each.default]

    async def _end_run(self, arguments: dict[str, Any]) -> dict[str, Any]:
        take_arguments(arguments)
        counters = {**self._all_counters(), "private_bytes": private_bytes()}
        self._log.record("run_ended", {"run_id": self._log.run_id, "counters": counters})
        self._log.sample(counters)
        ended = self._log.end_run()
        digests = await run_in_thread(partial(digests_of, ended))
        return {"t_ns": time.monotonic_ns(), "digests": digests}

    async def _drain(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Wait until no queue of this broker has entries.

        The answer reports success or a timeout.
        """
        (timeout_ms,) = take_arguments(arguments, timeout_ms=(int, 10_000))
        with trio.move_on_after(timeout_ms / 1_000):
            while not self.is_started or self._core.status().queued or self._links.waiting_bytes():
                await trio.sleep(0.02)
            await self._disk.settle()
        queue, waiting = self._core.status().queued, self._links.waiting_bytes()
        drained = self.is_started and not queue and not waiting
        return {"drained": drained, "queued": queue, "outbox_bytes": waiting}

    def _core_status(self) -> CoreStatus[BrokerNumber]:
        """Return the status of the core; "recovering" before the core was started."""
        status = self._core.status()
        return status if self.is_started else replace(status, state="recovering")

    async def _probe(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Probe all surrounding brokers.

        With `peers`, only those peers and only for this answer; with `within_ms`, an attempt
        without an answer by then has failed.
        """
        peers, within_ms = take_arguments(arguments, peers=(list, []), within_ms=(int, 0))
        if peers:
            return await self._probe_peers(find_peers(self._own, peers), within_ms)
        names = self._own.names
        await self._probes.try_all(names)
        missing = self._probes.missing()
        return {
            "reached": [names[number] for number in names if number not in missing],
            "missing": {names[number]: why for number, why in missing.items()},
        }

    async def _probe_peers(self, peers: list[Peer], within_ms: int) -> dict[str, Any]:
        """Probe some peers. A peer with a session is reached, unless the session is a black hole.

        A session through a black hole lasts until the failure detector ends it.
        """
        reached: list[str] = []
        missing: dict[str, str] = {}
        took_us: dict[str, int] = {}

        async def probe(peer: BrokerNumber, name: str) -> None:
            began_ns = time.monotonic_ns()
            why: str | None = "no answer in time"
            with trio.move_on_after(within_ms / 1e3 if within_ms > 0 else float("inf")):
                why = await self._links.probe(peer)
            took_us[name] = (time.monotonic_ns() - began_ns) // 1_000
            if why is not None and not self._links.can_exchange(peer):
                missing[name] = why
            else:
                reached.append(name)

        async with trio.open_nursery() as nursery:
            for peer in peers:
                assert isinstance(peer, int), peer
                nursery.start_soon(probe, peer, self._own.names[peer])
        return {"reached": sorted(reached), "missing": missing, "took_us": took_us}

    async def _probe_disk(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Write a page durably beside the broker's state, and report the time taken."""
        take_arguments(arguments)
        began_ns = time.monotonic_ns()
        written = await self._disk.probe(Path(self._config.state_folder) / "probe")
        return {"written": written, "took_us": (time.monotonic_ns() - began_ns) // 1_000}


def _resident(size_bytes: int | None) -> dict[str, int]:
    """Return the column of resident memory; nothing if it could not be read."""
    return {} if size_bytes is None else {"rss_bytes": size_bytes}
