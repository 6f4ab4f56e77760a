"""A synthetic run in the format of load generators that fold deliveries into stretches."""

import json
import shutil
import struct
from pathlib import Path

from bench.load.records import Level, Stretches
from brokerd.history.records import APPLICATION, DATA, FENCE
from results.rules.expectation import ExpectedContent, parse_predicate
from results.tables.json_files import read_toml
from results.tables.seals import seal
from tests.helpers.runs import write_records

_ROW = struct.Struct("<qqIIHHBBH")
_TICK_NS = 1_000_000_000  # a load generator writes down what it has once a second


def folded_copy(run: Path, folder: Path, level: Level) -> Path:
    """Return a copy of a run with its deliveries folded in hindsight."""
    copy = folder / run.parent.name / run.name
    shutil.copytree(run, copy)
    with (copy / "spec" / "workload.toml").open("a") as file:
        file.write(f'\n[load]\nrecords = "{level}"\n')
    workload = read_toml(copy / "spec" / "workload.toml")
    content = ExpectedContent.from_workload(workload, run.name)
    for path in copy.glob("raw/*/*/deliveries.rec"):
        _fold(path, content, level)
    seal(copy)
    return copy


def _fold(path: Path, content: ExpectedContent, level: Level) -> None:
    sidecar = json.loads(path.with_name("deliveries.rec.json").read_text())
    tables = sidecar["tables"]
    lines = (path.parent / "subscriptions.jsonl").read_text().splitlines()
    predicates = {
        row["sub_id"]: parse_predicate(row["predicate"]) for row in map(json.loads, lines)
    }
    publishers = [*content.publishers.values()]
    rows: list[bytes] = []
    stretches = Stretches(level, rows.append)
    highest: dict[tuple[int, int, int], int] = {}
    before_ns = now_ns = 0
    for row in _ROW.iter_unpack(path.read_bytes()):
        before_ns = now_ns
        sequence, now_ns, digest, subscription, publisher, incarnation, kind, layer, _ = row
        if now_ns > before_ns + _TICK_NS:
            stretches.settle(now_ns, before_ns + _TICK_NS)
        key = subscription, publisher, incarnation
        predicate = predicates[tables["subscriptions"][subscription]]
        of = publishers[publisher]

        def matches(number: int) -> bool:
            chosen, _ = content.choice(of.index, incarnation, number)  # noqa: B023
            return predicate.holds(content.attributes(chosen))  # noqa: B023

        between = range(highest.get(key, sequence) + 1, sequence)
        is_next = (
            (kind, layer) == (DATA, APPLICATION)
            and highest.get(key, sequence) < sequence
            and not any(map(matches, between))
            and matches(sequence)
            and digest == content.digest(of, incarnation, sequence, fence=False)
        )
        highest[key] = max(highest.get(key, 0), sequence)
        ((_, is_sampled),) = stretches.parts([sequence])
        if is_next and not is_sampled and stretches.take(*key, [sequence], now_ns):
            continue
        assert kind != FENCE or not is_next
        stretches.end(*key, now_ns)
        rows.append(_ROW.pack(*row))
    stretches.settle(now_ns, now_ns)
    write_records(
        path.parent, "deliveries", sidecar["run_id"], rows, {**tables, "sample": stretches.sample}
    )
