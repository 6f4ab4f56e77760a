"""Lies in all files of the controller: manifest, specification and fault log."""

import json
import tomllib
from functools import partial
from typing import Any, Final

from brokerd.protocols.registry import read_topology
from tests.helpers.false_witnesses import journal_change
from tests.helpers.forged_folders import RunFolder
from tests.helpers.lie_tables import Change, ConsistentLie, add_lie
from tests.helpers.settled_runs import PUBLISHERS, SUBSCRIBERS, renew_specification

SECOND: Final = 10**9
_MS: Final = 10**6
LIES: Final[dict[str, ConsistentLie]] = {}
_add = partial(add_lie, LIES)


def _manifest(**values: Any) -> Change:
    def change(run: RunFolder) -> None:
        journal_change(lambda manifest: manifest.update(values))(run)

    return change


def _headline(**values: Any) -> Change:
    def change(run: RunFolder) -> None:
        journal_change(lambda manifest: manifest["headline"].update(values))(run)

    return change


def _specify(name: str, old: str, new: str) -> Change:
    """Return a change of the specification, with the digest in all files."""

    def change(run: RunFolder) -> bool | None:
        if old not in run.path(name).read_text():
            return False
        run.replace(name, old, new)
        renew_specification(run)
        return None

    return change


def _parameters(name: str, value: Any) -> Change:
    """Return a change of a protocol parameter, with the digest of the topology in all files."""

    def change(run: RunFolder) -> bool | None:
        manifest = json.loads(run.path("manifest.json").read_text())
        parameters = manifest["parameters"]
        if name not in parameters or parameters[name] == value:
            return False
        if name == "delta":
            run.replace("spec/topology.toml", "delta = 1", f"delta = {value}")
        parameters[name] = value
        topology = read_topology(tomllib.loads(run.path("spec/topology.toml").read_text()), "")
        digest = topology.digest(manifest["protocol"], parameters)
        journal_change(
            lambda manifest: manifest.update(parameters=parameters, topology_digest=digest)
        )(run)
        for process in (PUBLISHERS, SUBSCRIBERS):
            with run.document(f"raw/{process}/setting.json") as setting:
                setting["topology_digest"] = digest
        renew_specification(run)
        return None

    return change


def _payload(run: RunFolder) -> None:
    run.replace("spec/workload.toml", 'size = "40B"', 'size = "4KiB"')
    journal_change(lambda manifest: manifest.update(payload_bytes=4096))(run)
    renew_specification(run)


_add("connections_were_encrypted", "controller", _manifest(transport="TLS"), trust="TLS")
_add(
    "hosts_did_not_wait_for_disks",
    "controller",
    _manifest(without_fsync=["local1"]),
    trust="without_fsync",
)
_add("payloads_were_larger", "controller", _payload, says="corrupted")
for _name, _key, _value in (
    ("delta_was_larger", "delta", 2),
    ("queues_were_shorter", "queue_limit", 5),
    ("the_window_was_smaller", "client_window", 99),
    ("subscribers_could_be_away_shorter", "client_linger_ns", SECOND),
    ("fewer_subscriptions_were_allowed", "client_subscriptions", 5),
    ("there_was_one_stream_per_broker", "pubends", 1),
    ("attempts_were_rarer", "retry_limit_ns", 9 * SECOND),
):
    _add(_name, "controller", _parameters(_key, _value), says=f"parameter {_key}")
for _name, _old, _new, _says in (
    ("less_was_guaranteed", '"exactly-once"', '"at-least-once"', "guarantee"),
    ("gaps_were_permitted", "gapless = true", "gapless = false", "guarantee"),
    ("no_order_was_guaranteed", 'order = "publisher"', 'order = "none"', "guarantee"),
    ("fewer_deliveries_were_required", "pair_min = 10", "pair_min = 1", "bars"),
    ("the_run_was_to_be_calm", "calm = false", "calm = true", "calm"),
):
    _add(_name, "controller", _specify("spec/workload.toml", _old, _new), says=f"on {_says}")
for _name, _old, _new in (
    ("publishers_were_to_be_late", "< 1s", "< 2s"),
    ("the_drain_was_to_last_longer", 'drain = "20s"', 'drain = "30s"'),
):
    _add(_name, "controller", _specify("spec/workload.toml", _old, _new), trust="specification")
_add(
    "the_rate_was_lower",
    "controller",
    _specify("spec/workload.toml", '"10/s"', '"9/s"'),
    says="intended times",
)
_add("machines_never_waited", "controller", _manifest(waited_share={}), trust="processor")
_add("brokers_were_ready_sooner", "controller", _headline(ready_after_us=1000.0), trust="ready")
_add(
    "the_tool_was_another",
    "controller",
    _manifest(tool_version="9.9.9", git_commit="0" * 40),
    trust="versions",
)
_add(
    "the_machine_was_another",
    "controller",
    _manifest(cpu="another", cores=64),
    trust="description of machines",
)
_add("disks_held_less", "controller", _manifest(disk_bytes={"c1": 1}), trust="disks")
_add(
    "brokers_yielded_the_processor", "controller", _manifest(broker_nice={"c1": 5}), trust="priorit"
)


def _took(run: RunFolder) -> None:
    journal_change(lambda manifest: manifest["drain"].update(took_s=0.001))(run)


_add("the_drain_was_shorter", "controller", _took, trust="length of the drain")


def _absorb(by: int) -> Change:
    def change(run: RunFolder) -> bool | None:
        if not run.path("faults/faults.jsonl").is_file():
            return False
        changed = False
        for name in ("faults/log.jsonl", "log.jsonl"):
            with run.lines(name) as rows:
                for row in rows:
                    of = row.get("evidence") or {}
                    if of.get("absorbed_publications", 0) + by >= 0 and "absorbed_bytes" in of:
                        of["absorbed_publications"] += by
                        changed = True
        with run.lines("faults/faults.jsonl") as rows:
            for row in rows:
                if row.get("absorbed_msgs") is not None:
                    row["absorbed_msgs"] += by
                    evidence = json.loads(row["evidence"])
                    if evidence.get("absorbed_publications", -1) + by >= 0:
                        evidence["absorbed_publications"] += by
                    row["evidence"] = json.dumps(evidence)
        return changed

    return change


_add("more_was_absorbed", "controller", _absorb(5), says="absorbed")
_add("less_was_absorbed", "controller", _absorb(-5), says="disagree on absorbed_msgs of")


def _move_fault(step: str, by_ns: int) -> Change:
    """Return a change that moves all stages of a fault but the planned time, in all fault files."""

    def change(run: RunFolder) -> bool | None:
        if not run.path("faults/faults.jsonl").is_file():
            return False
        with run.lines("faults/faults.jsonl") as rows:
            for row in rows:
                if row["step"] == step:
                    for key in row:
                        if key.startswith("t_") and key != "t_planned_ns" and row[key]:
                            row[key] += by_ns
                    for stamps in row["host_stamps"].values():
                        for host in stamps:
                            stamps[host] += by_ns
        for name in ("faults/log.jsonl", "log.jsonl"):
            with run.lines(name) as rows:
                for row in rows:
                    if row.get("step") == step and row.get("stage") not in ("planned", "learned"):
                        row["t_ns"] += by_ns
                        of = (row.get("evidence") or {}).get("host_stamps") or {}
                        for stamps in (row.get("host_stamps") or {}, of):
                            for host, at_ns in stamps.items():
                                if isinstance(at_ns, int):
                                    stamps[host] = at_ns + by_ns
        return None

    return change


for _step, _says in (
    ("freeze-c3", "planned time"), ("away", "disagree"), ("absorb-c2", "disagree"),
):  # fmt: skip
    _add(f"{_step}_was_sooner", "controller", _move_fault(_step, -300 * _MS), says=_says)
    _add(f"{_step}_was_later", "controller", _move_fault(_step, 300 * _MS), says=_says)
