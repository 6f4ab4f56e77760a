"""What a load generator is told, and everything it writes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from bench.load.publishing import PublisherSetting
from bench.load.receiving import SubscriberSetting
from bench.load.stretches import Level
from bench.run.run_directory import json_text, write_whole
from brokerd.config import SessionParameters, TlsFiles
from brokerd.history.records import ACKS, DELIVERIES, INTENTS, POSITIONS, PUBLICATIONS
from brokerd.history.writer import LineWriter, RecordWriter


@dataclass(frozen=True, slots=True)
class LoadSetting:
    """What the controller says to a load generator when it starts it.

    Attributes:
        process: its name.
        log_folder, control_socket: where it writes, and obeys.
        run_id, seed: of the run.
        brokers: names in topology order, to name the sources of deliveries.
        attributes: [name, definition] pairs of the workload; a list, because their order counts.
        sets: how many attribute sets to draw.
        protocol, deployment_id, topology_digest: of the brokers it may talk to.
        session: what brokers and clients agree on about sessions.
        lateness_limit_ns: later than this, a second counts as saturated.
        order: of the guarantee; "total": all subscribers get shared publications in the same order.
        may_overtake: whether a publication may come before an earlier one of its source.
        records: how much is written down of deliveries; see `bench.load.stretches`.
        tls: the certificate of all its clients; None for plaintext on loopback.
        publishers, subscribers: who there is.
        addresses: of brokers, each with its name; clients go there if their broker says so.
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

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """From a control message's content; `core` is the agent's business."""
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


_OF_PUBLISHERS: Final = (PUBLICATIONS.name, ACKS.name, INTENTS.name)


class LoadFiles:
    """The files of one load generator: closed in order by `close`, or not at all.

    Attributes:
        publications, acks, intents: of a process with publishers.
        deliveries: of a process with subscribers; positions beside it once there are any.
        is_closed: whether nothing may be written any more.
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
        # Written every second, perhaps while no descriptor is free.
        self._lines = {"stats": LineWriter(folder / "stats.jsonl")}

    def append(self, layout: str, rows: bytes | bytearray) -> None:
        """Add rows to the record file of this layout."""
        if layout not in self._records:
            assert layout == POSITIONS.name, f"nobody here writes {layout}"
            self._records[layout] = RecordWriter(self._folder, POSITIONS, self._run_id)
        self._records[layout].append(rows)

    def write_line(self, name: str, value: Mapping[str, Any]) -> None:
        """Add a line to `<name>.jsonl`, such as stats, sessions or subscriptions."""
        if self.is_closed:
            return
        lines = self._lines.get(name)
        if lines is None:
            lines = self._lines[name] = LineWriter(self._folder / f"{name}.jsonl")
        lines.write(value)

    def sync(self, layout: str) -> None:
        """Wait until what was flushed is on disk; may run in another thread."""
        self._records[layout].sync()

    def flush(self, *layouts: str) -> None:
        """Hand what was appended to the operating system: of these layouts, or of all."""
        if not self.is_closed:
            for layout in layouts or self._records:
                self._records[layout].flush()

    def close(
        self,
        publishers: Mapping[str, Any],
        deliveries: Mapping[str, Any],
        online: Mapping[str, Any] | None,
    ) -> None:
        """End all files in order, with the string tables of each kind."""
        if self.is_closed:
            return
        self.is_closed = True
        for name, writer in self._records.items():
            writer.close(publishers if name in _OF_PUBLISHERS else deliveries)
        for lines in self._lines.values():
            lines.close()
        if online is not None:
            write_whole(self._folder / "online.json", json_text(online))

    def abandon(self) -> None:
        """Flush everything and say nothing about its being whole."""
        if self.is_closed:
            return
        self.is_closed = True
        for writer in self._records.values():
            writer.abandon()
        for lines in self._lines.values():
            lines.close()
