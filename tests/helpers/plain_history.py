"""A run directory read in plain Python, row by row: the twin of the Spark pipeline's reading."""

import json
import struct
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from results.expectation import ExpectedContent
from results.logs import NOTICE
from results.manifest import verify_seal
from results.reference_check import (
    Delivered,
    History,
    Judgement,
    Published,
    PublisherLog,
    SubscriptionLog,
    check,
)
from results.risks import Fault, parts_of
from results.verdicts import Guarantee
from results.withheld import Notice, Partition


def read_history(folder: Path) -> History:
    """The history in a small, faultless run directory."""
    manifest = json.loads((folder / "manifest.json").read_text())
    workload = tomllib.loads((folder / "spec" / "workload.toml").read_text())
    topology = tomllib.loads((folder / "spec" / "topology.toml").read_text())
    origin_ns = manifest["origin_ns"]
    publishers = []
    subscriptions = []
    for process in sorted(folder.glob("raw/*/*")):
        if (process / "publications.rec").exists():
            publishers += [*_publishers(process, origin_ns)]
        if (process / "deliveries.rec").exists():
            subscriptions += [*_subscriptions(process, origin_ns)]
    return History(
        content=ExpectedContent.of_workload(workload, manifest["run_id"]),
        publishers=publishers,
        subscriptions=subscriptions,
        links=[(a, b) for a, b in topology["links"]],
        faults=[*_faults(folder, origin_ns)],
        guarantee=Guarantee(**workload.get("guarantee", {})),
        calm=workload.get("calm", False),
        deliveries_per_pair_min=workload["bars"]["deliveries_per_pair_min"],
        delta=topology["parameters"]["delta"],
        newcomers=tuple(manifest.get("joined", ())),
    )


def judged(folder: Path) -> Judgement:
    """The verdict on a run whose files are whole, without Java."""
    verify_seal(folder)
    return check(read_history(folder))


def _rows(process: Path, layout: str, code: str) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
    sidecar = json.loads((process / f"{layout}.rec.json").read_text())
    data = (process / f"{layout}.rec").read_bytes()
    return sidecar["tables"], [*struct.iter_unpack(code, data)]


def _publishers(process: Path, origin_ns: int) -> Iterator[PublisherLog]:
    tables, rows = _rows(process, "publications", "<qqqHHI")
    _, acks = _rows(process, "acks", "<qqqHHBxxx")
    for number, source in enumerate(tables["publishers"]):
        yield PublisherLog(
            source=source,
            name=tables["publisher_names"][source],
            published=[
                Published(incarnation, sequence, chosen, sent_ns - origin_ns)
                for sequence, _, sent_ns, publisher, incarnation, chosen in rows
                if publisher == number
            ],
            answers=[
                (incarnation, first, last, outcome)
                for first, last, _, publisher, incarnation, outcome in acks
                if publisher == number
            ],
        )


def _subscriptions(process: Path, origin_ns: int) -> Iterator[SubscriptionLog]:
    tables, rows = _rows(process, "deliveries", "<qqIIHHBBH")
    lines = (process / "subscriptions.jsonl").read_text().splitlines()
    accepted = {line["sub_id"]: line for line in map(json.loads, lines)}
    partitions = [Partition.of_mapping(values) for values in tables.get("partitions", ())]
    for number, name in enumerate(tables["subscriptions"]):
        delivered: list[Delivered] = []
        notices: list[Notice] = []
        for row in rows:
            sequence, stamp_ns, digest, of, publisher, incarnation, kind, layer, partition = row
            if of != number or layer != 1:
                continue
            source, received_ns = tables["publishers"][publisher], stamp_ns - origin_ns
            if kind == NOTICE:
                last = sequence + digest - 1
                notices.append(
                    Notice(
                        source, incarnation, sequence, last, partitions[partition],
                        len(delivered), received_ns,
                    )
                )  # fmt: skip
            else:
                delivered.append(
                    Delivered(source, incarnation, sequence, received_ns, digest, kind)
                )
        yield SubscriptionLog(
            subscription=name,
            broker=accepted[name]["broker"],
            predicate=accepted[name]["predicate"],
            delivered=delivered,
            notices=notices,
            issued_ns=accepted[name]["t_issued_ns"] - origin_ns,
        )


def _faults(folder: Path, origin_ns: int) -> Iterator[Fault]:
    def moved(stamp: int | None) -> int | None:
        return None if stamp is None else stamp - origin_ns

    topology = tomllib.loads((folder / "spec" / "topology.toml").read_text())
    path = folder / "faults" / "faults.jsonl"
    for line in path.read_text().splitlines() if path.exists() else ():
        row = json.loads(line)
        yield Fault(
            row["fault_id"], row["verb"], row["target"], moved(row["t_applied_ns"]),
            moved(row["t_observed_ns"]), moved(row["t_healed_ns"]),
            parts_of(row["verb"], row["target"], topology["brokers"], topology["links"], {}),
        )  # fmt: skip
