"""Settings and files of a load generator, and the part of it that its clients use."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, Self

import trio

from bench.load.pacing import Turn
from bench.load.publishers import PublisherSetting
from bench.load.records import Level
from bench.load.subscribers import Receiver, SubscriberSetting
from bench.run.run_directory import json_text
from brokerd.config import SessionParameters, TlsFiles
from brokerd.files import file_sha256, write_whole
from brokerd.history.records import ACKS, DELIVERIES, INTENTS, POSITIONS, PUBLICATIONS
from brokerd.history.writer import LineWriter, RecordWriter


@dataclass(frozen=True, slots=True)
class LoadSetting:
    """The settings of a load generator, from the controller.

    Attributes:
        process: name of the process.
        log_folder, control_socket: folder of its files, and its control socket.
        run_id, seed: id and seed of the run.
        brokers: names in topology order, for the sources of deliveries.
        attributes: [name, definition] pairs of the workload; a list, because the order counts.
        sets: number of attribute sets.
        protocol, deployment_id, topology_digest: facts about the allowed brokers.
        session: common session parameters of brokers and clients.
        lateness_limit_ns: lateness beyond which a second counts as saturated.
        order: order of the guarantee; "total": all subscribers receive shared publications in the
            same order.
        may_overtake: True if a publication may arrive before an earlier publication of its source.
        records: amount of records of deliveries; see `bench.load.records`.
        tls: certificate of all clients; None for plaintext on loopback.
        publishers, subscribers: the clients.
        addresses: address → broker; clients move there after a redirect of their broker.
        specification_digest: digest of the run's specification before the run.
        judged: the keys of the workload that decide the verdict, for the folder of the run.
    """

    process: str
    log_folder: Path
    control_socket: str
    run_id: str
    seed: int
    brokers: tuple[str, ...]
    attributes: tuple[tuple[str, Mapping[str, Any]], ...]
    sets: int
    protocol: str
    deployment_id: str
    topology_digest: str
    lateness_limit_ns: int
    publishers: tuple[PublisherSetting, ...]
    subscribers: tuple[SubscriberSetting, ...]
    order: str = "publisher"
    may_overtake: bool = False
    records: Level = "full"
    tls: TlsFiles | None = None
    session: SessionParameters = field(default_factory=SessionParameters)
    addresses: Mapping[str, str] = field(default_factory=dict)
    specification_digest: str = ""
    judged: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Return the settings in the content of a control message; `core` is ignored."""
        given = {key: value for key, value in values.items() if key != "core"}
        given["log_folder"] = Path(values["log_folder"])
        given["brokers"] = tuple(values["brokers"])
        given["attributes"] = tuple((name, value) for name, value in values["attributes"])
        given["publishers"] = tuple(map(PublisherSetting.from_mapping, values["publishers"]))
        given["subscribers"] = tuple(map(SubscriberSetting.from_mapping, values["subscribers"]))
        given["session"] = SessionParameters(**values.get("session", {}))
        if values.get("tls") is not None:
            given["tls"] = TlsFiles.from_mapping(dict(values["tls"]), "tls")
        return cls(**given)


SETTING_FILE: Final = "setting.json"

SETTING_SCHEMA: Final = "pubsubctl/setting/1"


def _collect_settings(setting: LoadSetting) -> dict[str, Any]:
    """Return the settings that a run folder repeats, as a second witness of its specification."""
    return {
        "schema": SETTING_SCHEMA,
        "process": setting.process,
        "run_id": setting.run_id,
        "specification_digest": setting.specification_digest,
        "protocol": setting.protocol,
        "topology_digest": setting.topology_digest,
        "deployment_id": setting.deployment_id,
        "seed": setting.seed,
        "records": setting.records,
        **setting.judged,
    }


_WITH_DIGEST: Final = (".json", ".jsonl")
_OF_PUBLISHERS: Final = (PUBLICATIONS.name, ACKS.name, INTENTS.name)


class SessionClient(Protocol):
    """A client with a number for each of its sessions."""

    name: str
    broker: str
    session: int


class LoadFiles:
    """The files of one load generator: closed in order by `close`, or not at all.

    A process with publishers writes publications, acknowledgements and intents; a process with
    subscribers writes deliveries, and positions from the first position on.

    Attributes:
        is_closed: True after the last write.
    """

    def __init__(self, setting: LoadSetting) -> None:
        folder = setting.log_folder
        folder.mkdir(parents=True, exist_ok=True)
        self.is_closed = False
        self._folder = folder
        self._run_id = setting.run_id
        self._records: dict[str, RecordWriter] = {}
        for layout, wanted in (
            (PUBLICATIONS, setting.publishers),
            (ACKS, setting.publishers),
            (INTENTS, setting.publishers),
            (DELIVERIES, setting.subscribers),
        ):
            if wanted:
                self._records[layout.name] = RecordWriter(folder, layout, setting.run_id)
        write_whole(folder / SETTING_FILE, json_text(_collect_settings(setting)))
        # Statistics are written every second, perhaps while no descriptor is free.
        self._lines = {"stats": LineWriter(folder / "stats.jsonl")}

    def append(self, layout: str, rows: bytes | bytearray) -> None:
        """Append rows to the record file of this layout; drop rows after the end of the run."""
        if self.is_closed:
            return
        if layout not in self._records:
            assert layout == POSITIONS.name, f"no layout {layout}: this program cannot write it"
            self._records[layout] = RecordWriter(self._folder, POSITIONS, self._run_id)
        self._records[layout].append(rows)

    def write_line(self, name: str, value: Mapping[str, Any]) -> None:
        """Append a line to `<name>.jsonl`, for example stats, sessions or subscriptions."""
        if self.is_closed:
            return
        lines = self._lines.get(name)
        if lines is None:
            lines = self._lines[name] = LineWriter(self._folder / f"{name}.jsonl")
        lines.write(value)

    def write_session(self, client: SessionClient, t_ns: int, event: str, reason: str) -> None:
        """Append a line of sessions: a client's session is up, or down for a reason."""
        line = {"t_ns": t_ns, "client": client.name, "broker": client.broker}
        self.write_line(
            "sessions", {**line, "session": client.session, "event": event, "reason": reason}
        )

    def write_subscription(self, setting: SubscriberSetting, issued_ns: int) -> None:
        """Append a line of subscriptions: a subscription is accepted now."""
        line = {
            "sub_id": setting.subscription,
            "subscriber": setting.name,
            "broker": setting.broker,
            "predicate": setting.predicate,
            "t_issued_ns": issued_ns,
            "t_accepted_ns": time.monotonic_ns(),
        }
        self.write_line("subscriptions", line)

    def sync(self, layout: str) -> None:
        """Fsync flushed rows; may run in another thread."""
        self._records[layout].sync()

    def flush(self, *layouts: str) -> None:
        """Flush appended rows to the operating system, of these layouts or of all layouts."""
        if not self.is_closed:
            for layout in layouts or self._records:
                self._records[layout].flush()

    def close(
        self,
        publishers: Mapping[str, Any],
        deliveries: Mapping[str, Any],
        online: Mapping[str, Any] | None,
    ) -> None:
        """Close all files in order, with the string tables of each kind."""
        if self.is_closed:
            return
        self.is_closed = True
        for name, writer in self._records.items():
            writer.close(publishers if name in _OF_PUBLISHERS else deliveries)
        for lines in self._lines.values():
            lines.close()
        if online is not None:
            write_whole(self._folder / "online.json", json_text(online))

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of each closed file, by name; a sidecar has that of its records."""
        closed = (path for path in sorted(self._folder.iterdir()) if path.suffix in _WITH_DIGEST)
        return {path.name: file_sha256(path) for path in closed}

    def abandon(self) -> None:
        """Flush all files without a statement that the files are complete."""
        if self.is_closed:
            return
        self.is_closed = True
        for writer in self._records.values():
            writer.abandon()
        for lines in self._lines.values():
            lines.close()


class ClientHost(Protocol):
    """A load generator, as an interface for its clients.

    Attributes:
        setting: settings of the load generator.
        files: record files of all clients.
        receiver: the online checker of all subscribers.
        turn: bounds how long a client runs before others do.
        beginning: bounds how many clients connect at the same time.
        reserve_wanted: set by a publisher that needs more sequence numbers.
    """

    setting: LoadSetting
    files: LoadFiles
    receiver: Receiver
    turn: Turn
    beginning: trio.Semaphore
    reserve_wanted: trio.Event

    def start_task(self, task: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """Start a task that ends with the load generator."""

    def note_problem(self, text: str) -> None:
        """Record a problem for the verdict of the run."""
