"""Synthetic run directories: the demo with a broker that stalls and is killed.

The files equal those that the coordinator collects from real processes, byte by byte. Tests of the
result pipeline and the pictures therefore need no broker.
"""

import hashlib
import json
import random
import struct
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.load.pacing import intended_offsets
from brokerd.text import toml_text
from results.rules.expectation import ExpectedContent, parse_predicate
from results.tables.seals import seal

MILLISECOND = 1_000_000
SECOND = 1_000 * MILLISECOND
ORIGIN_NS = 86_400 * SECOND
BOOT_ID = "6e8b9a52-5f0b-4c1c-9c44-3a0f6f1f2a11"

DEMO_TOPOLOGY = {
    "schema": "pubsubctl/topology/2",
    "name": "demo",
    "kind": "tree",
    "brokers": ["p1", "b1", "b2", "b3", "b4", "s1", "s2", "s3", "s4", "s5"],
    "links": [
        ["p1", "b1"], ["b1", "s1"], ["b1", "s2"], ["b1", "b2"],
        ["p1", "b3"], ["b3", "s3"], ["b3", "s4"], ["b3", "s5"], ["b3", "b4"],
    ],
    "tree": {"delta": 1},
}  # fmt: skip
SUBSCRIBERS = [
    {"at": ["s1", "s3"], "count": 1, "filter": "true"},
    {"at": ["s2"], "count": 1, "filter": "price <= 250 or volume > 9000"},
    {
        "at": ["s4"],
        "count": 1,
        "filter": "symbol in ('SYMBOL001', 'SYMBOL002', 'SYMBOL003') and not volume < 100",
    },
    {"at": ["s5"], "count": 1, "filter": "symbol = 'SYMBOL007'"},
]
ROUTES = {
    "s1": ("p1", "b1", "s1"), "s2": ("p1", "b1", "s2"), "s3": ("p1", "b3", "s3"),
    "s4": ("p1", "b3", "s4"), "s5": ("p1", "b3", "s5"),
}  # fmt: skip


@dataclass(frozen=True)
class Scenario:
    """The events of a synthetic demo run, in seconds after the start of measurement."""

    run_id: str = "20260102T030405Z-0a1b2c"
    protocol: str = "delta_tree"
    seed: int = 11
    rate: int = 25
    measure_s: float = 12.0
    stall_s: float = 4.0
    kill_s: float = 5.1
    bypass_s: float = 0.31
    restart_s: float = 8.0
    bars: int = 20
    workload: Mapping[str, Any] = field(default_factory=dict)

    @property
    def loses(self) -> bool:
        return self.protocol == "best_effort"


def workload_of(scenario: Scenario) -> dict[str, Any]:
    """Return the resolved workload file."""
    return {
        "schema": "pubsubctl/workload/1",
        "name": "demo",
        "topology": "demo",
        "protocol": scenario.protocol,
        "seed": scenario.seed,
        "calm": False,
        "guarantee": {"delivery": "exactly-once", "order": "publisher", "gapless": True},
        "bars": {"deliveries_per_pair_min": scenario.bars},
        "phases": {"warmup": "1s", "measure": f"{scenario.measure_s}s", "drain": "30s"},
        "thresholds": {"loadgen.lateness_p99": "< 100ms"},
        "attributes": {
            "sets": 100,
            "symbol": {"choose": 10},
            "price": {"uniform": [1, 500]},
            "volume": {"uniform": [1, 10000]},
        },
        "publishers": [{"at": ["p1"], "count": 4, "rate": f"{scenario.rate}/s", "size": "100B"}],
        "subscribers": SUBSCRIBERS,
        **scenario.workload,
    }


@dataclass
class _Row:
    """A publication in flight."""

    publisher: int
    sequence: int
    attribute_set: int
    intended_ns: int
    sent_ns: int
    digest: int
    acked_ns: int


def write_demo_run(folder: Path, scenario: Scenario | None = None) -> Path:
    """Write a synthetic demo run into a new folder below `folder`; return the folder of the run."""
    scenario = scenario or Scenario()
    rng = random.Random(scenario.seed)
    run = folder / "demo" / scenario.run_id
    run.mkdir(parents=True)
    content = ExpectedContent.from_workload(workload_of(scenario), scenario.run_id)
    rows = _publications(rng, scenario, content)
    _write_spec(run, scenario)
    _write_publishers(run, scenario, content, rows)
    _write_subscribers(run, rng, scenario, content, rows)
    _write_brokers(run, scenario)
    _write_faults(run, scenario)
    _write_manifest(run, scenario)
    (run / "log.jsonl").write_text('{"t_ns": 1, "what": "end"}\n')
    seal(run)
    return run


def _publications(rng: random.Random, scenario: Scenario, content: ExpectedContent) -> list[_Row]:
    rows = []
    period_ns = SECOND // scenario.rate
    first_ns, last_ns = -2 * SECOND, round((scenario.measure_s + 3) * SECOND)
    for publisher, expected in enumerate(content.publishers.values()):
        rng.randrange(period_ns)
        intended = [first_ns]
        for chunk in intended_offsets(
            numerator=scenario.rate,
            denominator=1,
            arrivals="fixed",
            seed=scenario.seed,
            index=publisher,
            duration_ns=round((scenario.measure_s + 1) * SECOND),
        ):
            intended += [offset - SECOND for offset in chunk]
        intended += [last_ns]
        for sequence, at_ns in enumerate(intended, start=1):
            fence = sequence in (1, len(intended))
            late_ns = round(rng.lognormvariate(10.3, 0.6))
            attribute_set = (
                content.fence_set if fence else content.choice(expected.index, 0, sequence)[0]
            )
            digest = content.digest(expected, 0, sequence, fence=fence)
            sent_ns = at_ns + late_ns
            meant_ns = sent_ns if fence else at_ns
            rows.append(_Row(publisher, sequence, attribute_set, meant_ns, sent_ns, digest, 0))
    return sorted(rows, key=lambda row: row.sent_ns)


def _received_ns(rng: random.Random, scenario: Scenario, at: str, sent_ns: int) -> int | None:
    """Return the arrival time of a publication at a broker's subscriber, or None if lost."""
    hops = len(ROUTES[at])
    usual_ns = sum(round(rng.lognormvariate(11.6, 0.35)) for _ in range(hops))
    stall, kill, restart = (
        round(s * SECOND) for s in (scenario.stall_s, scenario.kill_s, scenario.restart_s)
    )
    if "b1" not in ROUTES[at] or sent_ns < stall:
        return sent_ns + usual_ns
    reached_ns = (restart if scenario.loses else kill) + round(scenario.bypass_s * SECOND)
    if sent_ns >= reached_ns:
        direct = 0.72 if sent_ns < restart and not scenario.loses else 1.0
        return sent_ns + round(usual_ns * direct)
    if scenario.loses:
        return None
    # Held back, then sent again in order by the broker before the one that died.
    share = (sent_ns - stall) / (reached_ns - stall)
    return reached_ns + round(share * 24 * MILLISECOND) + usual_ns


def _write_publishers(
    run: Path, scenario: Scenario, content: ExpectedContent, rows: Sequence[_Row]
) -> None:
    process = run / "raw" / "local1" / "load-publishers"
    names = [*content.publishers]
    identities = [f"p1/{number}" for number in range(len(names))]
    tables = {
        "publishers": identities,
        "attribute_sets": [dict(content.attributes(n)) for n in range(content.fence_set + 1)],
        "publisher_names": dict(zip(identities, names, strict=True)),
    }
    packed = [
        struct.pack(
            "<qqqHHI", row.sequence, ORIGIN_NS + row.intended_ns, ORIGIN_NS + row.sent_ns,
            row.publisher, 0, row.attribute_set,
        )
        for row in rows
    ]  # fmt: skip
    write_records(process, "publications", scenario.run_id, packed, tables)
    acks = []
    for row in rows:
        acked_ns = row.sent_ns + MILLISECOND
        stall, reached = scenario.stall_s * SECOND, (scenario.kill_s + 0.34) * SECOND
        if stall <= row.sent_ns < reached and not scenario.loses:
            acked_ns = round(reached) + MILLISECOND
        acks.append(
            struct.pack(
                "<qqqHHBxxx", row.sequence, row.sequence, ORIGIN_NS + acked_ns, row.publisher, 0, 1
            )
        )
    write_records(process, "acks", scenario.run_id, acks, tables)
    intents = [
        struct.pack("<qqHHxxxxxxxxxxxx", 4096, ORIGIN_NS - 3 * SECOND, number, 0)
        for number in range(len(names))
    ]
    write_records(process, "intents", scenario.run_id, intents, tables)
    stats = [
        {
            "t_ns": ORIGIN_NS + second * SECOND,
            "offered": max(0, (second + 1) * scenario.rate * 4),
            "sent": max(0, (second + 1) * scenario.rate * 4),
            "late_p99_us": 180,
            "cpu_s": 0.04 * (second + 2),
            "saturated": False,
        }
        for second in range(-1, round(scenario.measure_s) + 1)
    ]
    write_lines(process / "stats.jsonl", stats)


def _write_subscribers(
    run: Path, rng: random.Random, scenario: Scenario, content: ExpectedContent,
    rows: Sequence[_Row],
) -> None:  # fmt: skip
    placed = [(at, entry["filter"]) for entry in SUBSCRIBERS for at in entry["at"]]
    identities = [f"p1/{number}" for number in range(len(content.publishers))]
    for host, brokers in (("local2", ("s1", "s2")), ("local3", ("s3", "s4", "s5"))):
        process = run / "raw" / host / f"load-{host}"
        here = [(at, text) for at, text in placed if at in brokers]
        arrivals: list[tuple[int, bytes]] = []
        for number, (at, text) in enumerate(here):
            predicate = parse_predicate(text)
            before_ns = -10 * SECOND
            for row in rows:
                fence = row.attribute_set == content.fence_set
                if not fence and not predicate.holds(content.attributes(row.attribute_set)):
                    continue
                received_ns = _received_ns(rng, scenario, at, row.sent_ns)
                if received_ns is None:
                    continue
                before_ns = max(before_ns + 1000, received_ns)
                packed = struct.pack(
                    "<qqIIHHBBxx", row.sequence, ORIGIN_NS + before_ns, row.digest, number,
                    row.publisher, 0, int(fence), 1,
                )  # fmt: skip
                arrivals.append((before_ns, packed))
        arrivals.sort()
        tables = {
            "subscriptions": [f"{at}-sub-1/1" for at, _ in here],
            "publishers": identities,
        }
        packed_rows = [packed for _, packed in arrivals]
        write_records(process, "deliveries", scenario.run_id, packed_rows, tables)
        write_lines(
            process / "subscriptions.jsonl",
            [
                {
                    "sub_id": f"{at}-sub-1/1",
                    "subscriber": f"{at}-sub-1",
                    "broker": at,
                    "predicate": text,
                    "t_issued_ns": ORIGIN_NS - 3 * SECOND,
                    "t_accepted_ns": ORIGIN_NS - 3 * SECOND + 40 * MILLISECOND,
                }
                for at, text in here
            ],
        )


def _write_brokers(run: Path, scenario: Scenario) -> None:
    seconds = range(-1, round(scenario.measure_s) + 1)
    for broker in DEMO_TOPOLOGY["brokers"]:
        host = {"p": "local1", "b": "local2", "s": "local3"}[broker[0]]
        process = run / "raw" / host / broker
        down = range(round(scenario.kill_s), round(scenario.restart_s))
        stats = [
            {
                "t_ns": ORIGIN_NS + second * SECOND,
                "publications_received": 100 * (second + 1),
                "publications_forwarded": 200 * (second + 1),
                "publications_delivered": 0,
                "queue_publications": 0,
                "sessions_active": 4,
                "subscriptions": 5,
                "resent_publications": 112 if broker == "p1" and second > scenario.kill_s else 0,
                "duplicates_received": 0,
                "cpu_s": (0.03 + 0.01 * len(broker)) * (second + 2),
                "rss_bytes": 31_000_000,
            }
            for second in seconds
            if not (broker == "b1" and second in down)
        ]
        write_lines(process / "stats.jsonl", stats)
        events = []
        if broker in ("p1", "s1", "s2", "b2"):
            killed_ns = ORIGIN_NS + round(scenario.kill_s * SECOND) + 2 * MILLISECOND
            events.append(
                {"t_ns": killed_ns, "event": "session_lost", "peer": "b1", "reason": "reset"}
            )
            events += _requests(broker, killed_ns)
        write_lines(process / "events.jsonl", events)


def _write_faults(run: Path, scenario: Scenario) -> None:
    def at(seconds: float, plus_ms: float = 0) -> int:
        return ORIGIN_NS + round(seconds * SECOND) + round(plus_ms * MILLISECOND)

    empty = {"t_heal_requested_ns": None, "t_healed_ns": None, "t_recovered_ns": None,
             "healed_by": None, "absorbed_msgs": None, "absorbed_bytes": None}  # fmt: skip
    rows = [
        {
            **empty, "fault_id": "stall-b1", "step": "stall-b1", "verb": "absorb", "target": "b1",
            "params": {"for": "1.1s"}, "t_planned_ns": at(scenario.stall_s, -1.2),
            "t_requested_ns": at(scenario.stall_s, -1), "t_applied_ns": at(scenario.stall_s),
            "t_observed_ns": at(scenario.stall_s, 41), "state": "observed",
            "evidence": '{"absorbed_publications": 112, "forwarded": 0}', "absorbed_msgs": 112,
            "absorbed_bytes": 11_200,
        },
        {
            **empty, "fault_id": "kill-b1", "step": "kill-b1", "verb": "kill", "target": "b1",
            "params": {"signal": "KILL"}, "t_planned_ns": at(scenario.kill_s, -1.1),
            "t_requested_ns": at(scenario.kill_s, -0.9), "t_applied_ns": at(scenario.kill_s),
            "t_observed_ns": at(scenario.kill_s, 1.3), "state": "recovered",
            "t_heal_requested_ns": at(scenario.restart_s, -1),
            "t_healed_ns": at(scenario.restart_s), "t_recovered_ns": at(scenario.restart_s, 420),
            "healed_by": "schedule", "evidence": '{"exit_signal": 9}',
        },
        {
            **empty, "fault_id": "restart-b1", "step": "restart-b1", "verb": "restart",
            "target": "b1", "params": {}, "t_planned_ns": at(scenario.restart_s, -1.2),
            "t_requested_ns": at(scenario.restart_s, -1), "t_applied_ns": at(scenario.restart_s),
            "t_observed_ns": at(scenario.restart_s, 120), "state": "recovered",
            "t_recovered_ns": at(scenario.restart_s, 420), "evidence": '{"state": "ready"}',
        },
    ]  # fmt: skip
    write_lines(run / "faults" / "faults.jsonl", rows)
    planned = ("fault_id", "step", "verb", "target", "params")
    lines = [{name: row[name] for name in planned} for row in rows]
    write_lines(run / "faults" / "plan.jsonl", lines)


def _write_spec(run: Path, scenario: Scenario) -> None:
    (run / "spec").mkdir()
    (run / "spec" / "workload.toml").write_text(toml_text(workload_of(scenario)))
    (run / "spec" / "topology.toml").write_text(toml_text(DEMO_TOPOLOGY))


def _write_manifest(run: Path, scenario: Scenario) -> None:
    measured_ns = round(scenario.measure_s * SECOND)
    phases = [("deploy", -5, -3), ("warmup", -1, 0)]
    manifest = {
        "schema": "pubsubctl/manifest/1",
        "state": "complete",
        "run_id": scenario.run_id,
        "experiment": "demo",
        "started_utc": "2026-01-02T03:04:05.000Z",
        "ended_utc": "2026-01-02T03:04:25.000Z",
        "protocol": scenario.protocol,
        "seed": scenario.seed,
        "workload": "demo",
        "topology": "demo",
        "tool_version": "0.1.0",
        "git_commit": "0123456789abcdef0123456789abcdef01234567",
        "git_dirty": False,
        "python": "3.11.7",
        "platform": "Linux-6.18-x86_64",
        "cpu": "made up",
        "cores": 2,
        "argv": ["pubsubctl", "demo"],
        "labels": {"brokers": "made up"},
        "phases": [
            *(
                {"phase": name, "t0_ns": ORIGIN_NS + t0 * SECOND, "t1_ns": ORIGIN_NS + t1 * SECOND}
                for name, t0, t1 in phases
            ),
            {"phase": "measure", "t0_ns": ORIGIN_NS, "t1_ns": ORIGIN_NS + measured_ns},
            {
                "phase": "drain",
                "t0_ns": ORIGIN_NS + measured_ns,
                "t1_ns": ORIGIN_NS + measured_ns + 3 * SECOND,
            },
        ],
        "clock": {"host_id": "local1", "boot_id": BOOT_ID},
        "origin_ns": ORIGIN_NS,
    }
    (run / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


def write_records(
    folder: Path, layout: str, run_id: str, rows: Sequence[bytes], tables: Mapping[str, Any],
    *, closed: bool = True,
) -> None:  # fmt: skip
    """Write a record file with its sidecar."""
    folder.mkdir(parents=True, exist_ok=True)
    data = b"".join(rows)
    (folder / f"{layout}.rec").write_bytes(data)
    sidecar = {
        "schema": "pubsubctl/rec/1",
        "layout": layout,
        "width": 32,
        "run_id": run_id,
        "tables": tables,
        "rows": len(rows),
        "blake2b": hashlib.blake2b(data).hexdigest(),
        "closed": closed,
    }
    (folder / f"{layout}.rec.json").write_text(json.dumps(sidecar) + "\n")


def write_lines(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Write a file of JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _requests(broker: str, after_ns: int) -> list[dict[str, Any]]:
    """Return the nacks after the loss of b1: s1 and s2 send to b2, and b2 sends once to p1."""
    names = ("p1", "b1", "b2", "b3", "b4", "s1", "s2", "s3", "s4", "s5")
    number = {name: place for place, name in enumerate(names)}
    told = {"s1": ("b2", (2_000, 700)), "s2": ("b2", (2_700,)), "b2": ("p1", (2_700,))}
    peer, asked_ms = told.get(broker, ("p1", ()))
    return [
        {
            "t_ns": after_ns + place * MILLISECOND,
            "event": "retransmission_requested",
            "peer": number[peer],
            "source": number["p1"],
            "stream": 0,
            "ranges": 1,
            "asked_ns": ms * MILLISECOND,
        }
        for place, ms in enumerate(asked_ms)
    ]


ARCHIVES = Path(__file__).parents[2] / "results" / "samples" / "figures"


def unpack_sample(name: str, runs: Path) -> Path:
    """Unpack the archived run of an experiment into a folder of runs; return its folder."""
    target = runs / name / "unpacked"
    with tarfile.open(ARCHIVES / f"{name}.tar.xz") as archive:
        archive.extractall(target, filter="data")
    run_id = json.loads((target / "manifest.json").read_text())["run_id"]
    return target.rename(target.with_name(run_id))
