"""The manifest, against the journal, the specification and the records.

The journal of the controller (`log.jsonl`) has the start of each phase and the end of the run.
"""

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from brokerd.model.fault_verbs import MACHINE_VERBS
from brokerd.overlay.topology import TREE, without_departed
from brokerd.protocols.registry import DEFINITIONS, read_topology
from brokerd.units import parse_duration_ns, parse_size_bytes
from results.rules.terms import doubt
from results.witnesses.folder import (
    CHANGES,
    CLOSED_SCHEMA,
    CLOSED_SCHEMAS,
    COUNTED_SCHEMA,
    COUNTED_SCHEMAS,
    JOURNAL,
    LOGGED_SCHEMA,
    MANIFEST,
    SET_SCHEMA,
    SET_SCHEMAS,
    SIMULATED_HOST,
    SYSTEM,
    TOPOLOGY,
    WITNESSED_SCHEMA,
    WITNESSED_SCHEMAS,
    WORKLOAD,
    RunFolder,
)
from results.witnesses.headline import check_headline, is_same
from results.witnesses.promises import read_running_protocol
from results.witnesses.rows import Rows

NOT_JOURNALED: Final = ("argv", "ended_utc", "started_utc")
"""Keys of the manifest that the last line of the journal does not repeat."""


_SLACK_S = 0.001
_LATE_S = 5.0
"""The journal has a phase later than it began, by no more than that."""
_DRIFTED_NS = 50_000_000
"""The error of a comparison of clocks that drift may add to the quickest round trip."""
_COMPARED_NS = 1_000_000_000
"""Clocks are compared within that time of a stamp of the journal."""
_LACKS_ALL: Final = ("the manifest and the specification", JOURNAL)
_LACKS: Final = {
    "pubsubctl/manifest/2": ("what faults absorbed", "raw/*/*/events.jsonl"),
    "pubsubctl/manifest/3": ("the settings of load generators", "raw/*/*/setting.json"),
    "pubsubctl/manifest/4": ("the files that processes closed", JOURNAL),
}
"""What an older schema has no second witness of, and the file that has it today."""
_FIXED: Final = ("warmup", "measure")
_PHASES: Final = ("deploy", "warmup", "measure", "drain")
_SPECIFIED: Final = ("spec/cli.json", "spec/placement.json")
"""Files that each run of brokers of ours has."""
_OF_PROCESSES: Final = ("spec/placement.json", "spec/inventory.toml", "clock.jsonl")
"""Files that no simulation writes."""


def doubts_about_manifest(folder: RunFolder, rows: Rows) -> Iterator[str]:
    """Yield differences between the manifest and other files."""
    yield from _check_specification(folder)
    yield from _check_roles(folder)
    yield from _check_journal(folder)
    yield from _check_drain(folder)
    yield from check_headline(folder, rows)


def _differ(other: str, subject: str, found: Any, wanted: Any, one: str = MANIFEST) -> str:
    return doubt("disagree", one=one, other=other, what=subject, found=found, wanted=wanted)


def _check_specification(folder: RunFolder) -> Iterator[str]:
    manifest = folder.manifest
    if "protocol" in manifest and manifest["protocol"] != folder.workload.get("protocol"):
        yield _differ(WORKLOAD, "protocol", manifest["protocol"], folder.workload.get("protocol"))
    if folder.is_witnessed and folder.is_of_processes and not folder.is_foreign:
        for name in _SPECIFIED:
            if not folder.has(name):
                yield doubt("missing_file", file=name, other=MANIFEST)
    if "joined" in manifest and folder.joined and [*manifest["joined"]] != folder.joined:
        yield _differ(TOPOLOGY, "joined", manifest["joined"], folder.joined)
    yield from _check_kind(folder)
    yield from _check_payload(folder)
    labelled = (manifest.get("labels") or {}).get("brokers") == "simulated"
    if folder.processes and labelled != folder.is_simulated:
        hosts = sorted({process.host for process in folder.processes})
        yield _differ("raw/", "labels.brokers", labelled, hosts)
    clock = manifest.get("clock") or {}
    lines = folder.lines("clock.jsonl")
    ids = clock.get("clock_ids") or {}
    for line in lines:
        if line["host_id"] in ids and ids[line["host_id"]] != line["clock_id"]:
            yield _differ(
                "clock.jsonl", f"clock of {line['host_id']}", ids[line["host_id"]],
                line["clock_id"],
            )  # fmt: skip
        if line["ref_host"] != clock.get("host_id"):
            yield _differ("clock.jsonl", "host_id", clock.get("host_id"), line["ref_host"])
    if lines and (strange := sorted({*ids} - {str(line["host_id"]) for line in lines})):
        yield _differ("clock.jsonl", "clock_ids", strange, None)
    yield from _check_clock(folder)
    yield from _check_machines(folder, lines)
    yield from _check_topology(folder)


def _check_kind(folder: RunFolder) -> Iterator[str]:
    """The kind of run that the manifest names decides which files are witnesses."""
    manifest = folder.manifest
    schema = manifest.get("schema")
    if folder.logged_files and schema != LOGGED_SCHEMA:
        yield _differ(folder.logged_files[0], "schema", schema, LOGGED_SCHEMA)
    elif folder.closed_files and schema not in CLOSED_SCHEMAS:
        yield _differ(folder.closed_files[0], "schema", schema, CLOSED_SCHEMA)
    elif folder.setting_files and schema not in SET_SCHEMAS:
        yield _differ(folder.setting_files[0], "schema", schema, SET_SCHEMA)
    elif folder.counted_files and schema not in COUNTED_SCHEMAS:
        yield _differ(folder.counted_files[0], "schema", schema, COUNTED_SCHEMA)
    elif folder.newer_files and schema not in WITNESSED_SCHEMAS:
        yield _differ(folder.newer_files[0], "schema", schema, WITNESSED_SCHEMA)
    elif folder.is_made_up and folder.looks_real:
        yield _differ("raw/", "labels.brokers", manifest["labels"]["brokers"], "processes")
    elif schema not in CLOSED_SCHEMAS and not (folder.is_simulated or folder.is_made_up):
        missing, other = _LACKS.get(str(schema), _LACKS_ALL)
        yield doubt("older_schema", file=MANIFEST, schema=schema, other=other, what=missing)
    if folder.is_counted and folder.is_of_processes and not folder.is_foreign:
        yield from _check_events_schema(folder)
    system = folder.document(SYSTEM)
    if folder.names_system and folder.is_closed and manifest.get("system") != system:
        yield _differ(SYSTEM, "system", manifest.get("system"), dict(system))
    if folder.names_system and not folder.is_foreign:
        yield _differ(WORKLOAD, "system", manifest.get("system"), folder.workload.get("protocol"))
    if bool(manifest.get("rolling")) != (folder.rolling_ns is not None):
        yield _differ(JOURNAL, "rolling", manifest.get("rolling"), folder.rolling_ns)
    history = (manifest.get("labels") or {}).get("history")
    if history and (not folder.is_simulated or folder.has("spec/cli.json")):
        yield _differ("spec/cli.json", "labels.history", history, None)
    if not folder.is_simulated:
        return
    real = [name for name in _OF_PROCESSES if folder.has(name)]
    real += [
        f"{process.place}/{name}"
        for process in folder.processes
        for name in ("exit.json", "sessions.jsonl", "stats.jsonl", "online.json")
        if process.has(name)
    ]
    if any(line.get("what") == "phase" for line in folder.journal):
        real.append(JOURNAL)
    if real:
        yield _differ(real[0], "labels.brokers", "simulated", "processes")


def _check_payload(folder: RunFolder) -> Iterator[str]:
    """The manifest repeats the size of payloads, and hosts that do not wait for the disk."""
    manifest, sizes = folder.manifest, set[int]()
    for entry in folder.workload.get("publishers", ()):
        try:
            sizes.add(parse_size_bytes(entry["size"]))
        except (KeyError, TypeError, ValueError):
            return
    if "payload_bytes" in manifest and sizes:
        wanted = next(iter(sizes)) if len(sizes) == 1 else None
        if manifest["payload_bytes"] != wanted:
            yield _differ(WORKLOAD, "payload_bytes", manifest["payload_bytes"], wanted)
    named = {str(name) for name in manifest.get("without_fsync") or ()}
    hosts = {str(about["host"]) for about in (manifest.get("roles") or {}).values()}
    if named - hosts:
        yield _differ("raw/", "without_fsync", sorted(named), sorted(hosts))


def _check_events_schema(folder: RunFolder) -> Iterator[str]:
    counted = {*folder.counted_files}
    for process in folder.processes:
        name = f"{process.place}/events.jsonl"
        if (
            process.name in {*folder.brokers}
            and process.has("events.jsonl")
            and name not in counted
        ):
            yield _differ(name, "schema", COUNTED_SCHEMA, "events of an older schema")


def _check_topology(folder: RunFolder) -> Iterator[str]:
    """The digest that all brokers of the deployment agreed on is the topology's."""
    manifest = folder.manifest
    parameters, protocol = manifest.get("parameters"), str(folder.workload.get("protocol"))
    running = read_running_protocol(folder)
    if folder.is_witnessed and not folder.is_simulated and protocol in DEFINITIONS:
        if running is None:
            yield _differ(TOPOLOGY, "protocol", protocol, None)
        elif parameters is None:
            yield _differ(TOPOLOGY, "parameters", None, protocol)
    if running is None or parameters is None or folder.joined:
        return
    deployed, other = yield from _find_deployed(folder)
    if deployed is None:
        return
    wanted = read_topology(deployed, other).digest(protocol, parameters)
    if manifest.get("topology_digest") != wanted:
        yield _differ(other, "topology_digest", manifest.get("topology_digest"), wanted)


def _find_deployed(
    folder: RunFolder,
) -> Generator[str, None, tuple[Mapping[str, Any] | None, str]]:
    """Return the topology of the deployment and its file, after doubts about brokers that joined.

    None if the folder of an older program does not show which links the deployment had.
    """
    joined = [str(name) for name in folder.manifest.get("joined") or ()]
    if folder.has(CHANGES):
        changed = read_topology(folder.document(CHANGES), CHANGES)
        if joined != [row.name for row in changed.joined]:
            named = [row.name for row in changed.joined]
            yield _differ(CHANGES, "joined", joined, named)
        present = without_departed(folder.topology)
        if json.loads(json.dumps(changed.as_it_is())) != present:
            yield _differ(CHANGES, "brokers and links", present, changed.as_it_is(), one=TOPOLOGY)
        return folder.document(CHANGES), CHANGES
    if not joined and not folder.topology.get("left"):
        return folder.topology, TOPOLOGY
    if folder.is_logged and folder.is_of_processes:
        yield doubt("missing_file", file=CHANGES, other=MANIFEST)
    if strange := [name for name in joined if name not in folder.brokers]:
        yield _differ(TOPOLOGY, "joined", strange, folder.brokers)
    if folder.topology.get("kind") != TREE or folder.topology.get("left"):
        return None, TOPOLOGY
    brokers = [name for name in folder.topology["brokers"] if name not in joined]
    links = [link for link in folder.topology["links"] if not {*link} & {*joined}]
    return {**folder.topology, "brokers": brokers, "links": links}, TOPOLOGY


def _check_clock(folder: RunFolder) -> Iterator[str]:
    lines = folder.lines("clock.jsonl")
    ids = {line["host_id"]: line["clock_id"] for line in lines}
    for line in lines:
        is_one = line["clock_id"] == ids.get(line["ref_host"], line["clock_id"])
        where = f"{line['host_id']} {line['phase']} the load"
        if line["same_clock"] != is_one:
            yield _differ("clock.jsonl", f"same_clock of {where}", line["same_clock"], is_one,
                          one="clock.jsonl")  # fmt: skip
        if is_one and (line["offset_ns"] or line["err_ns"] or line["drift_ppb"]):
            yield _differ("clock.jsonl", f"offset of {where}", line["offset_ns"], 0,
                          one="clock.jsonl")  # fmt: skip
    hosts = {process.host for process in folder.processes} - {SIMULATED_HOST}
    for phase in ("before", "after"):
        there = {line["host_id"] for line in lines if line["phase"] == phase}
        if lines and (lost := sorted(hosts - there)):
            complete = folder.manifest.get("state") == "complete"
            if phase == "before" or complete:
                yield doubt("missing_line", file="clock.jsonl", what=f"{lost[0]} {phase} the load",
                            other="raw/")  # fmt: skip
    clock = folder.manifest.get("clock") or {}
    boot, reference = clock.get("boot_id"), ids.get(str(clock.get("host_id")))
    if boot is not None and reference is not None and str(reference).partition("/")[0] != boot:
        yield _differ("clock.jsonl", "clock.boot_id", boot, reference)
    if folder.is_witnessed and not folder.is_simulated and not lines:
        yield doubt("missing_file", file="clock.jsonl", other=MANIFEST)


def _check_machines(folder: RunFolder, lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield clocks that the addresses of hosts or the length of the comparison contradict."""
    ids = {str(line["host_id"]): str(line["clock_id"]) for line in lines}
    by_ip: dict[str, str] = {}
    for row in _placement(folder):
        host, ip = str(row["host"]), str(row.get("ip"))
        other = by_ip.setdefault(ip, host)
        if host in ids and other in ids and ids[host] != ids[other]:
            yield _differ(
                "spec/placement.json", f"clock of {host}", ids[host], ids[other], one="clock.jsonl"
            )
    times = [line["t_ns"] for line in folder.journal if "t_ns" in line]
    for line in lines:
        where = f"{line['host_id']} {line['phase']} the load"
        if line["err_ns"] > line["rtt_min_ns"] + _DRIFTED_NS:
            yield _differ(
                "clock.jsonl", f"err_ns of {where}", line["err_ns"], line["rtt_min_ns"],
                one="clock.jsonl",
            )  # fmt: skip
        yield from _check_comparison(folder, line, times)
        if times and line["n"] * line["rtt_min_ns"] > max(times) - min(times):
            yield _differ(
                JOURNAL, f"rtt_min_ns of {where}", line["rtt_min_ns"], max(times) - min(times),
                one="clock.jsonl",
            )  # fmt: skip


def _check_comparison(
    folder: RunFolder, line: Mapping[str, Any], times: Sequence[int]
) -> Iterator[str]:
    """Yield comparisons of clocks that were not made just before or just after the load."""
    deploy, drain = folder.phase_ns("deploy"), folder.phase_ns("drain")
    ends = {
        "before": (min(times, default=None), None if deploy is None else deploy[0]),
        "after": (None if drain is None else drain[0], max(times, default=None)),
    }
    from_ns, to_ns = ends[line["phase"]]
    if from_ns is None or to_ns is None:
        return
    if not from_ns - _COMPARED_NS <= line["t_ns"] <= to_ns + _COMPARED_NS:
        yield _differ(
            MANIFEST, f"the time of {line['host_id']} {line['phase']} the load", line["t_ns"],
            (from_ns, to_ns), one="clock.jsonl",
        )  # fmt: skip


def _check_roles(folder: RunFolder) -> Iterator[str]:
    roles: Mapping[str, Any] | None = folder.manifest.get("roles")
    if roles is None:
        if folder.is_witnessed and not folder.is_simulated:
            yield _differ("raw/", "roles", None, len(folder.processes))
        return
    brokers = {*folder.brokers}
    found = {process.name: process for process in folder.processes}
    for name, about in roles.items():
        process = found.get(name)
        if process is None:
            yield doubt("missing_file", file=f"raw/*/{name}", other=MANIFEST)
        elif process.host != about["host"]:
            yield _differ("raw/", f"host of {name}", about["host"], process.host)
        elif process.is_uncollected:
            continue
        elif process.is_load:
            wanted = {
                role
                for role, there in (
                    ("publisher", process.is_publisher), ("subscriber", process.is_subscriber),
                )
                if there
            }  # fmt: skip
            if about["role"] not in wanted:
                yield _differ("raw/", f"role of {name}", about["role"], sorted(wanted))
        elif about["role"] == "broker" and name not in brokers:
            yield _differ(TOPOLOGY, f"role of {name}", "broker", sorted(brokers)[:4])
        elif about["role"] != "broker":
            yield _differ("raw/", f"role of {name}", about["role"], "broker")
    for name in sorted({*found} - {*roles}):
        yield _differ("raw/", f"role of {name}", None, found[name].place)
    placed = {row["broker"]: row["host"] for row in _placement(folder)}
    lost = any(row["verb"] in MACHINE_VERBS for row in folder.fault_rows)
    if folder.is_of_processes and (placed or lost):
        there = sorted(name for name, about in roles.items() if about["role"] == "broker")
        if sorted(placed) != there:
            yield _differ("spec/placement.json", "brokers", there, sorted(placed))
    for name, about in roles.items():
        if about["role"] == "broker" and name in placed and placed[name] != about["host"]:
            yield _differ("spec/placement.json", f"host of {name}", about["host"], placed[name])


def _placement(folder: RunFolder) -> list[Any]:
    return [*folder.document("spec/placement.json").get("brokers", ())]


def _check_journal(folder: RunFolder) -> Iterator[str]:
    lines, manifest = folder.journal, folder.manifest
    began = {line["phase"]: line["at_ns"] for line in lines if line.get("what") == "phase"}
    phases = {phase["phase"]: phase for phase in manifest.get("phases") or ()}
    if began:
        for name in sorted({*began} | {*phases}):
            found = (phases.get(name) or {}).get("t0_ns")
            if found != began.get(name):
                yield _differ(JOURNAL, f"start of {name}", found, began.get(name))
        # The origin is planned when the load begins, and a run may end before.
        is_begun = "measure" in began or manifest.get("state") == "complete"
        if is_begun and manifest.get("origin_ns") != began.get("measure"):
            yield _differ(JOURNAL, "origin_ns", manifest.get("origin_ns"), began.get("measure"))
    if folder.is_witnessed and folder.is_of_processes and manifest.get("state") == "complete":
        for name in sorted({*_PHASES} - {*phases}):
            yield doubt("missing_line", file=MANIFEST, what=f"phase {name}", other="raw/")
    yield from _check_fixed_phases(folder)
    ordered = [*(manifest.get("phases") or ())]
    for before, after in pairwise(ordered):
        if folder.has("spec/cli.json") and before.get("t1_ns") != after["t0_ns"]:
            yield _differ(JOURNAL, f"end of {before['phase']}", before.get("t1_ns"), after["t0_ns"])
    if "measure" in phases and manifest.get("origin_ns") != phases["measure"]["t0_ns"]:
        yield _differ(MANIFEST, "origin_ns", manifest.get("origin_ns"), phases["measure"]["t0_ns"])
    stated = [line for line in lines if line.get("what") == "specification"]
    if not stated and "specification_digest" in manifest:
        yield doubt("missing_line", file=JOURNAL, what="the specification", other=MANIFEST)
    for line in stated:
        for key, name in (("digest", "specification_digest"), ("promises", "promises")):
            if not is_same(line.get(key), manifest.get(name)):
                yield _differ(JOURNAL, name, manifest.get(name), line.get(key))
    end = next((line for line in reversed(lines) if line.get("what") == "end"), None)
    if end is None:
        is_real = folder.is_witnessed or folder.has("spec/cli.json")
        if is_real and manifest.get("state") != "running":
            yield doubt("missing_line", file=JOURNAL, what="the end", other=MANIFEST)
        return
    yield from _check_length(folder, end)
    for key in ("state", "reasons"):
        is_there = key in end and (key in manifest or folder.is_witnessed)
        if (is_there or folder.is_witnessed) and end.get(key) != manifest.get(key):
            yield _differ(JOURNAL, key, manifest.get(key), end.get(key))
    if manifest.get("reasons") and manifest.get("state") == "complete":
        yield _differ(MANIFEST, "reasons", manifest["reasons"], "complete")
    yield from _check_repeated(folder, end.get("manifest"))


def _check_fixed_phases(folder: RunFolder) -> Iterator[str]:
    """Yield phases of another length than the workload fixes: the controller plans their ends."""
    if not folder.is_of_processes or folder.manifest.get("state") != "complete":
        return
    for phase in folder.manifest.get("phases") or ():
        name = phase["phase"]
        stated = (folder.workload.get("phases") or {}).get(name)
        if name not in _FIXED and phase.get("how") != "evidence":
            yield _differ(WORKLOAD, f"how {name} ended", phase.get("how"), "evidence")
        if name not in _FIXED or stated is None:
            continue
        if phase.get("how") != "fixed":
            yield _differ(WORKLOAD, f"how {name} ended", phase.get("how"), "fixed")
        took_ns = phase["t1_ns"] - phase["t0_ns"]
        if took_ns != parse_duration_ns(stated):
            yield _differ(WORKLOAD, f"length of {name}", took_ns, parse_duration_ns(stated))


def _check_length(folder: RunFolder, end: Mapping[str, Any]) -> Iterator[str]:
    """The drain was over when the journal ended, by the controller's own clock."""
    drain = folder.phase_ns("drain")
    begun = [
        line["t_ns"]
        for line in folder.journal
        if line.get("what") == "phase" and line.get("phase") == "drain" and "t_ns" in line
    ]
    if drain is None or not begun or "t_ns" not in end:
        return
    # The controller logs the phase later if other acts under load, such as a rolling replacement,
    # took longer than the load.
    took_s, lasted_s = (drain[1] - drain[0]) / 1e9, (end["t_ns"] - min(begun[0], drain[0])) / 1e9
    if took_s > lasted_s + _LATE_S:
        yield _differ(JOURNAL, "length of drain", took_s, lasted_s)


def _check_repeated(folder: RunFolder, repeated: Mapping[str, Any] | None) -> Iterator[str]:
    """The last line of the journal repeats the manifest."""
    if repeated is None:
        if folder.is_witnessed:
            yield doubt("missing_line", file=JOURNAL, what="the manifest", other=MANIFEST)
        return
    stated = {key: value for key, value in folder.manifest.items() if key not in NOT_JOURNALED}
    for key in sorted({*stated} | {*repeated}):
        if not is_same(stated.get(key), repeated.get(key)):
            yield _differ(JOURNAL, key, stated.get(key), repeated.get(key))


def _check_drain(folder: RunFolder) -> Iterator[str]:
    drain = folder.manifest.get("drain")
    ends = folder.phase_ns("drain")
    if drain is None:
        if folder.is_witnessed and not folder.is_simulated and ends is not None:
            yield _differ(JOURNAL, "drain", None, "a phase of this name")
        return
    if ends is not None and drain["took_s"] > (ends[1] - ends[0]) / 1e9 + _SLACK_S:
        yield _differ(MANIFEST, "drain.took_s", drain["took_s"], (ends[1] - ends[0]) / 1e9)
    if drain["ended_by"] == "evidence" and drain.get("waiting_for"):
        yield _differ(MANIFEST, "drain.ended_by", "evidence", drain["waiting_for"])
    is_silent = folder.is_witnessed and drain["ended_by"] != "evidence"
    if is_silent and not drain.get("waiting_for"):
        yield _differ(MANIFEST, "drain.ended_by", drain["ended_by"], "nothing to wait for")
    if drain["ended_by"] not in ("evidence", "silence", "bound", "timeout"):
        yield _differ(MANIFEST, "drain.ended_by", drain["ended_by"], "evidence")
