"""The fault log of a run folder: verbs, targets, times, and deviations from the plan."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from results.reference.files import FileRefusal, read_json, read_lines
from results.reference.times import Clocks
from results.rules.terms import Fault, doubt

HOLDING_VERBS = {"absorb", "send-omission", "receive-omission"}
"""Verbs that hold messages back."""
DEAFENING_VERBS = {"absorb", "receive-omission", "freeze", "blackhole", "cut"}
"""Verbs with a target that receives nothing."""
ENDING_VERBS = {"kill", "term", "host-loss"}
"""Verbs that end processes of brokers, which stay down until a restart or a heal."""
VERBS = {
    *HOLDING_VERBS,
    *ENDING_VERBS,
    *(
        "freeze",
        "blackhole",
        "cut",
        "partition",
        "delay",
        "bandwidth",
        "disk-full",
    ),
    *("slow-fsync", "cpu-share", "restart", "corrupt"),
    *("client-disconnect", "client-slow", "client-crash", "client-roam"),
}
_STAMPS = ("applied", "observed", "healed")
_OTHER_STAMPS = ("planned", "requested", "heal_requested", "recovered")


class FaultLog:
    """The faults of a run, on its time line.

    Args:
        load_hosts: hosts of publishers and subscribers.
    """

    def __init__(
        self,
        folder: Path,
        topology: Mapping[str, Any],
        clocks: Clocks,
        origin_ns: int,
        load_hosts: Sequence[str],
    ) -> None:
        self._folder = folder
        self._brokers: list[str] = [*topology["brokers"]]
        self._links = {(a, b) for a, b in topology["links"]}
        self._clocks = clocks
        self._origin_ns = origin_ns
        self._load_hosts = [clocks.reference, *load_hosts]
        placement = folder / "spec" / "placement.json"
        placed = read_json(placement).get("brokers", ()) if placement.is_file() else ()
        self._host_of = {row["broker"]: row["host"] for row in placed}
        self.rows = read_lines(folder / "faults" / "faults.jsonl")
        self.faults = [self._fault(row) for row in self.rows]

    def _fault(self, row: Mapping[str, Any]) -> Fault:
        texts = [row.get(name) for name in ("fault_id", "verb", "target")]
        if not all(isinstance(text, str) for text in texts) or row["verb"] not in VERBS:
            raise FileRefusal(f"{self._folder}: {texts} is no fault")
        for stage in (*_STAMPS, *_OTHER_STAMPS):
            self._number(row, stage)
        stamps = {stage: self._stamp(row, stage) for stage in _STAMPS}
        hosts = {
            host for stamps_of in (row.get("host_stamps") or {}).values() for host in stamps_of
        }
        return Fault(
            row["fault_id"], row["verb"], row["target"],
            stamps["applied"], stamps["observed"], stamps["healed"],
            tuple(self._list_struck(row["verb"], row["target"])),
            self._clocks.worst_ns((a, b) for a in sorted(hosts) for b in self._load_hosts),
            str((row.get("params") or {}).get("to", "")),
            row.get("absorbed_msgs"),
        )  # fmt: skip

    def _stamp(self, row: Mapping[str, Any], stage: str) -> int | None:
        """Return a stamp on the time line; the last stamp of several hosts."""
        stamp = (row.get("host_stamps") or {}).get(stage)
        if stamp is not None:
            return max(
                int(ns) - self._clocks.offset_ns(host, ns) - self._origin_ns
                for host, ns in stamp.items()
            )
        at_ns = self._number(row, stage)
        return None if at_ns is None else at_ns - self._origin_ns

    def _number(self, row: Mapping[str, Any], stage: str) -> int | None:
        at_ns: int | None = row.get(f"t_{stage}_ns")
        of_hosts = (row.get("host_stamps") or {}).get(stage) or {}
        for each in (at_ns, *of_hosts.values()):
            if each is not None and type(each) is not int:
                raise FileRefusal(f"{self._folder}: {row['fault_id']} was {stage} at {each!r}")
        return at_ns

    def _list_struck(self, verb: str, target: str) -> Iterator[str]:
        """Yield the brokers, links and clients of a target."""
        if verb.startswith("client-"):
            yield f"client:{target}"
        elif verb == "host-loss":
            yield from (b for b in self._brokers if self._host_of.get(b) == target)
        elif verb == "partition":
            sides = [side.split(",") for side in target.split("|")]
            if len(sides) == 1:
                sides.append([b for b in self._brokers if b not in sides[0]])
            for place, side in enumerate(sides):
                for other in sides[place + 1 :]:
                    yield from (f"{a}-{b}" for a in side for b in other)
        else:
            turned = [f"{a}-{b}" for a, b in self._links if target == f"{b}-{a}"]
            yield turned[0] if turned else target

    def doubts(self, simulated: bool) -> Iterator[str]:
        """Yield deviations from the plan, and missing facts."""
        lines = read_lines(self._folder / "faults" / "plan.jsonl")
        planned = [*{str(line.get("fault_id")): line for line in lines}.values()]
        logged = {row["fault_id"]: row for row in self.rows}
        has_schedule = (self._folder / "spec" / "faults.toml").is_file()
        for plan in planned:
            row = logged.get(str(plan.get("fault_id")))
            if row is None:
                yield doubt("not_logged", fault=plan.get("fault_id"))
            elif any(plan.get(name) != row[name] for name in ("verb", "target")):
                yield doubt("other_fault", fault=row["fault_id"])
        for fault_id in logged:
            if (planned or has_schedule) and fault_id not in {p.get("fault_id") for p in planned}:
                yield doubt("not_planned", fault=fault_id)
        if has_schedule and not self.rows:
            yield doubt("no_fault_log")
        if len(logged) < len(self.rows):
            yield doubt("twice", what="one fault")
        for fault, row in zip(self.faults, self.rows, strict=True):
            names = {"fault": fault.fault_id, "verb": fault.verb, "target": fault.target}
            if row.get("state") in ("failed", "unknown"):
                yield doubt("fault_failed", **names, why=row.get("evidence"))
            holds = fault.verb in HOLDING_VERBS
            is_done = holds and fault.observed_ns is not None
            if is_done and fault.absorbed is None and not simulated:
                yield doubt("absorb_silent", **names)
