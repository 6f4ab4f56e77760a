"""Tests of times: both judges doubt the same phases, lateness and bounds at and near all limits."""

import json
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from results.reference.contents import clients_of
from results.reference.times import TimeFacts, due_times, parts_of
from results.rules import timing
from results.tables.manifest import Phase
from results.tables.record_files import RECORDS, STRETCH

SECOND = 10**9
BESIDE_NS = (-1, 0, 1)
DRAIN_S = 2
BOUND_S = 10 * DRAIN_S


def drawn_phases(random: Random) -> dict[str, tuple[int, int]]:
    """Draw phases whose lengths and starts are at the limits, or one nanosecond beside."""
    slack_ns = random.choice((-1_000_000, 0, 1_000_000)) + random.choice(BESIDE_NS)
    measured_ns = 3 * SECOND + random.choice((0, slack_ns))
    warm_ns = SECOND + random.choice((0, slack_ns))
    begin_ns = random.choice((0, 0, 1))
    phases = {
        "deploy": (-9 * SECOND, -warm_ns + random.choice(BESIDE_NS)),
        "warmup": (-warm_ns, begin_ns + random.choice(BESIDE_NS)),
        "measure": (begin_ns, begin_ns + measured_ns),
        "drain": (begin_ns + measured_ns, begin_ns + measured_ns + 4 * SECOND),
    }
    for name in ("deploy", "warmup", "drain"):
        if random.random() < 0.2:
            del phases[name]
    return phases


@pytest.mark.parametrize("seed", range(20))
def test_both_judges_doubt_the_same_phases(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    for _ in range(20):
        phases = drawn_phases(random)
        took_s: Any = random.choice((4, 5, 5.001, 2 * BOUND_S + 120, 2 * BOUND_S + 121, None))
        if "drain" in phases and took_s and took_s > 100 and random.random() < 0.9:
            phases["drain"] = phases["drain"][0], phases["drain"][0] + 900 * SECOND
        manifest: dict[str, Any] = {"drain": random.choice(({"took_s": took_s},) * 4 + (None,))}
        workload = {"phases": {"warmup": "1s", "measure": "3s", "drain": f"{DRAIN_S}s"}}
        is_simulated = random.random() < 0.2
        run: Any = SimpleNamespace(
            manifest=manifest, workload=workload, is_simulated=is_simulated,
            phases=[Phase(name, *ends) for name, ends in phases.items()],
        )  # fmt: skip
        facts: Any = TimeFacts(
            tmp_path, manifest, workload, SimpleNamespace(), phases,  # type: ignore[arg-type]
            is_simulated, lambda ns, host: ns, lambda a, b: 0,
        )  # fmt: skip
        assert [*facts._check_phases()] == [*timing._phases(run)], (phases, took_s)


@pytest.mark.parametrize("seed", range(20))
def test_both_judges_doubt_the_same_stretches(seed: int, tmp_path: Path) -> None:
    """Stretches that lasted as long as they may, or a millisecond longer, behind an arrival."""
    random = Random(seed)
    rows = np.zeros(40, RECORDS["deliveries"])
    at_ns = 10**12
    for row in rows:
        at_ns += random.choice((0, 40_000_000))
        row["received_ns"] = at_ns
        if random.random() < 0.4:
            row["kind"], row["digest"] = STRETCH, 3
            row["partition"] = random.choice((100, 101, 102, 142, 182))
            at_ns += random.choice((0, -1, 1, 2_000_000))
            row["received_ns"] = at_ns
    rows["received_ns"] = np.maximum.accumulate(rows["received_ns"])
    rows.tofile(tmp_path / "deliveries.rec")
    workload = {"load": {"records": "hist"}}
    tables = {"sample": {"one_in": 256}}
    file: Any = SimpleNamespace(
        rows=len(rows), path=tmp_path / "deliveries.rec", layout="deliveries", host="h",
        name="h/p/deliveries.rec", tables=tables, scan=SimpleNamespace(in_stretches=3),
    )  # fmt: skip
    run: Any = SimpleNamespace(workload=workload)
    records: Any = SimpleNamespace(
        name=file.name, host="h", tables=tables,
        rows=[{"at_ns": int(row["received_ns"]), "kind": int(row["kind"]),
               "digest": int(row["digest"]), "partition": int(row["partition"])} for row in rows],
    )  # fmt: skip
    facts: Any = TimeFacts(
        tmp_path, {}, workload, SimpleNamespace(), {}, False,  # type: ignore[arg-type]
        lambda ns, host: ns, lambda a, b: 0,
    )  # fmt: skip
    assert [*facts._check_stretches(records)] == [*timing._stretches(run, file)]


@pytest.mark.parametrize("seed", range(20))
def test_both_judges_doubt_the_same_lateness_and_bounds(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    place = tmp_path / "raw" / "h" / "p"
    place.mkdir(parents=True)
    for number in range(8):
        begin_ns = random.choice((0, 0, random.randrange(60)))
        phases = {"warmup": (0, begin_ns), "measure": (begin_ns, 3 * SECOND)}
        phases["drain"] = 3 * SECOND, 5 * SECOND
        blocked_us = random.choice((0, 0, 7))
        stats = [{"blocked_us": blocked_us}, {"backlog": random.choice((0, 0, 0, 1))}]
        (place / "stats.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in stats))
        count = random.choice((52, 102, 102, 202))
        limit_ns = 1.1 * (10_000_000 + 1000 * blocked_us)
        rows = np.zeros(count, RECORDS["publications"])
        rows["intended_ns"] = rows["sent_ns"] = range(1, count + 1)
        late = random.sample(range(count), random.randrange(6))
        for each in late:
            rows["sent_ns"][each] += int(limit_ns) + random.choice(BESIDE_NS)
        rows["attribute_set"][random.sample(range(count), 2)] = 5
        error_ns, ended_by = random.choice((0, 40)), random.choice(("evidence", "silence"))
        edges = -SECOND - error_ns, 10 * SECOND + error_ns, 125 * SECOND + error_ns
        for edge_ns in edges:
            rows["sent_ns"][random.randrange(count)] = edge_ns + random.choice(BESIDE_NS)
        rows["sent_ns"] += 10**12
        rows["intended_ns"] += 10**12
        rows["sent_ns"][random.sample(range(1, count), random.randrange(2))] = 0
        rows.tofile(place / f"{number}.rec")
        drain = {"ended_by": ended_by} if random.random() < 0.8 else None
        manifest = {"drain": drain, "loadgen_saturated": random.random() < 0.2}
        is_simulated = random.random() < 0.2
        limits = {"loadgen.lateness_p99": "< 10ms"} if random.random() < 0.8 else None
        workload = {"thresholds": limits}
        content: Any = SimpleNamespace(fence_set=5)

        def moved(stamp_ns: int, host: str) -> int:
            return stamp_ns - 10**12

        file: Any = SimpleNamespace(
            rows=count, path=place / f"{number}.rec", layout="publications", host="h", process="p",
            name="h/p/publications.rec",
        )  # fmt: skip
        run: Any = SimpleNamespace(
            manifest=manifest, workload=workload, is_simulated=is_simulated, content=content,
            clocks=SimpleNamespace(reference="a"), clock_error_ns=lambda a, b, ns=error_ns: ns,
            phases=[Phase(name, *ends) for name, ends in phases.items()], to_timeline=moved,
            phase=lambda name, ends=phases: Phase(name, *ends[name]),
        )  # fmt: skip
        logs: Any = SimpleNamespace(
            processes=[SimpleNamespace(host="h", name="p", lines=lambda name, found=stats: found)]
        )
        records: Any = SimpleNamespace(
            name=file.name, host="h",
            rows=[{"at_ns": int(row["sent_ns"]), "intended_ns": int(row["intended_ns"]),
                   "attribute_set": int(row["attribute_set"])} for row in rows],
        )  # fmt: skip
        facts: Any = TimeFacts(
            tmp_path, manifest, workload, content, phases, is_simulated, moved,
            lambda *hosts, ns=error_ns: ns,
        )  # fmt: skip
        assert [*facts._check_lateness(records)] == [*timing._lateness(run, logs, file)]
        assert [*facts._check_bounds(records)] == [*timing._find_outside(run, file)]


@pytest.mark.parametrize("begin_ns, doubts", [(0, 1), (9, 1), (50, 0)])
def test_a_pause_in_the_warm_up_is_no_lateness_of_the_measurement(
    begin_ns: int, doubts: int, tmp_path: Path
) -> None:
    rows = np.zeros(100, RECORDS["publications"])
    rows["intended_ns"] = rows["sent_ns"] = range(100)
    rows["sent_ns"][10:40] += SECOND
    rows.tofile(tmp_path / "p.rec")
    content: Any = SimpleNamespace(fence_set=5)
    file: Any = SimpleNamespace(
        rows=100, path=tmp_path / "p.rec", layout="publications", host="h", process="p",
        name="h/p/publications.rec",
    )  # fmt: skip
    run: Any = SimpleNamespace(
        manifest={}, workload={}, is_simulated=False, content=content,
        phase=lambda name: Phase(name, begin_ns, SECOND), to_timeline=lambda ns, host: ns,
    )  # fmt: skip
    process: Any = SimpleNamespace(host="h", name="p", lines=lambda name: [])
    logs: Any = SimpleNamespace(processes=[process])
    records: Any = SimpleNamespace(
        name=file.name, host="h",
        rows=[{"at_ns": int(row["sent_ns"]), "intended_ns": int(row["intended_ns"]),
               "attribute_set": 0} for row in rows],
    )  # fmt: skip
    facts: Any = TimeFacts(
        tmp_path, {}, {}, content, {"measure": (begin_ns, SECOND)}, False,
        lambda ns, host: ns, lambda *hosts: 0,
    )  # fmt: skip
    for found in ([*facts._check_lateness(records)], [*timing._lateness(run, logs, file)]):
        assert len(found) == doubts


RATES: tuple[Any, ...] = (
    "max", "30/s", "0.007k/s", "900/min",
    [{"for": "1s", "at": "20/s"}, {"for": "500ms", "at": "0/s"}],
    [{"for": "1s", "at": "10/s", "to": "40/s"}, {"for": "250ms", "at": "8/s"}],
)  # fmt: skip


def drawn_workload(random: Random) -> dict[str, Any]:
    """Draw a workload with one to three publishers at one broker or at two."""
    entries = []
    for _ in range(random.choice((1, 2))):
        entry: dict[str, Any] = {"at": random.choice(("a", ["a"], ["a", "b"]))}
        entry |= {"rate": random.choice(RATES), "arrivals": random.choice(("fixed", "poisson"))}
        if random.random() < 0.4:
            entry["count"] = 2
        entries.append(entry)
    return {"publishers": entries}


def drawn_publications(
    random: Random, workload: dict[str, Any], slack_ns: int, lead_ns: int, fence: int
) -> np.ndarray:
    """Draw the records of publishers that follow their schedules, or are beside them."""
    found: list[tuple[int, int, int, int]] = []
    for number, (_, _, entry) in enumerate(clients_of(workload, "publishers", "pub")):
        parts = parts_of(entry["rate"], lead_ns, (0, 3 * SECOND))
        due = range(0, 3 * SECOND, 10**8) if parts is None else due_times(
            parts, 11, number, entry["arrivals"])  # fmt: skip
        offsets = [*due]
        if random.random() < 0.3:
            del offsets[random.randrange(len(offsets) + 1) :]
        if random.random() < 0.2:
            offsets += [(offsets or [0])[-1] + 5] * random.choice((1, 2))
        if len(offsets) > 1 and random.random() < 0.3:
            moved = random.randrange(1, len(offsets))
            offsets[moved] += random.choice((-1, 1)) * (slack_ns + random.choice((-1, 0, 1)))
        early = random.choice((0, 0, 0, 1)) if parts is not None or random.random() < 0.5 else 0
        lasts = [fence] * random.choice((0, 1, 1, 1))
        firsts = [fence] * random.choice((0, 1, 1, 1))
        sets = [*firsts, *[0] * len(offsets), *lasts]
        at = [*[0] * len(firsts), *offsets, *[3 * SECOND] * len(lasts)]
        for place, (kind, offset) in enumerate(zip(sets, at, strict=True)):
            sent_ns = offset - early if place == 1 else offset
            found.append((number, kind, offset, sent_ns))
    rows = np.zeros(len(found), RECORDS["publications"])
    seen: dict[int, int] = {}
    for row, (number, kind, offset, sent_ns) in zip(rows, found, strict=True):
        seen[number] = seen.get(number, 0) + 1
        row["publisher"], row["attribute_set"], row["sequence"] = number, kind, seen[number]
        row["incarnation"] = 1 if seen[number] < 9 else 2
        row["intended_ns"], row["sent_ns"] = 10**12 + offset, 10**12 + sent_ns
    return rows[np.array(random.sample(range(len(rows)), len(rows)), int)]


@pytest.mark.parametrize("seed", range(15))
def test_both_judges_doubt_the_same_schedules(seed: int, tmp_path: Path) -> None:
    """Publishers on time, beside it by the tolerance, stopped too soon, and with too much."""
    random = Random(seed)
    for number in range(20):
        is_simulated, error_ns = random.random() < 0.3, random.choice((0, 40))
        workload = drawn_workload(random)
        names = [name for name, _, _ in clients_of(workload, "publishers", "pub")]
        lead_ns = 0 if is_simulated or random.random() < 0.2 else SECOND
        length_ns = 3 * SECOND + lead_ns
        slack_ns = 1000 + (50_000_000 + length_ns // 10_000 if error_ns else 0)
        rows = drawn_publications(random, workload, slack_ns, lead_ns, 5)
        rows.tofile(tmp_path / f"{number}.rec")
        phases = {"measure": (lead_ns, lead_ns + 3 * SECOND), "warmup": (0, lead_ns)}
        if is_simulated:
            phases["warmup"] = random.choice((-SECOND, 0)), 0
        elif not lead_ns:
            del phases["warmup"]
        known = {name: SimpleNamespace(index=place) for place, name in enumerate(names)}
        content: Any = SimpleNamespace(publishers=known, seed=11, fence_set=5)
        tables: dict[str, Any] = {
            "publishers": [f"source-{name}" for name in names],
            "publisher_names": {f"source-{name}": name for name in names},
        }
        if random.random() < 0.2:
            tables["publisher_names"] = random.choice((None, {f"source-{names[0]}": "stranger"}))

        def moved(stamp_ns: int, host: str) -> int:
            return stamp_ns - 10**12

        file: Any = SimpleNamespace(
            rows=len(rows), path=tmp_path / f"{number}.rec", layout="publications", host="h",
            name="h/p/publications.rec", tables=tables,
        )  # fmt: skip
        all_phases = [Phase(name, *ends) for name, ends in phases.items()]
        run: Any = SimpleNamespace(
            workload=workload, is_simulated=is_simulated, content=content, phases=all_phases,
            phase=lambda name, ends=phases: Phase(name, *ends[name]), to_timeline=moved,
            clocks=SimpleNamespace(reference="a", share=lambda a, b, ns=error_ns: not ns),
        )  # fmt: skip
        records: Any = SimpleNamespace(
            name=file.name, host="h", tables=tables,
            rows=[{"at_ns": int(row["sent_ns"]), "intended_ns": int(row["intended_ns"]),
                   "attribute_set": int(row["attribute_set"]), "sequence": int(row["sequence"]),
                   "incarnation": int(row["incarnation"]), "publisher": int(row["publisher"])}
                  for row in rows],
        )  # fmt: skip
        facts: Any = TimeFacts(
            tmp_path, {}, workload, content, phases, is_simulated, moved,
            lambda *hosts, ns=error_ns: ns,
        )  # fmt: skip
        found = [*facts._check_schedule(records)]
        assert found == [*timing._schedules(run, file)], (workload, is_simulated, error_ns)
