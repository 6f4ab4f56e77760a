"""Run folders to forge: synthetic honest runs, their records, and the registry of forgeries."""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from results.tables.record_files import NOTICE, RECORDS
from results.tables.seals import seal
from tests.helpers.runs import ORIGIN_NS, SECOND, Scenario, write_demo_run, write_lines

DURATION = {"rate": 10, "measure_s": 3.0, "stall_s": 0.5, "kill_s": 1.0, "restart_s": 2.0}
PUBLISHERS, NEAR, FAR = "local1/load-publishers", "local2/load-local2", "local3/load-local3"
"""The processes with the publishers at p1, the subscribers at s1 and s2, and all others."""
S1, S2 = 0, 1
LAST = 42  # sequence number of each publisher's closing fence
WITHHELD = 15  # to s1, of each source, behind the gate

Outcome = Literal["refused", "doubt", "violation"]


class RunFolder:
    """The files of a run, open for changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str) -> Path:
        return self.folder / name

    @contextmanager
    def records(self, process: str, layout: str) -> Iterator["Rows"]:
        """Open the records of a log; write the records back with a matching sidecar."""
        path = self.path(f"raw/{process}/{layout}.rec")
        sidecar_path = path.with_name(path.name + ".json")
        sidecar = json.loads(sidecar_path.read_text())
        rows = Rows(np.fromfile(path, RECORDS[layout]), sidecar)
        yield rows
        data = rows.all.tobytes()
        path.write_bytes(data)
        sidecar |= {"rows": len(rows.all), "blake2b": hashlib.blake2b(data).hexdigest()}
        sidecar_path.write_text(json.dumps(sidecar))

    @contextmanager
    def lines(self, name: str) -> Iterator[list[dict[str, Any]]]:
        """Open the lines of a JSON lines file."""
        rows = [json.loads(line) for line in self.path(name).read_text().splitlines()]
        yield rows
        write_lines(self.path(name), rows)

    @contextmanager
    def document(self, name: str) -> Iterator[dict[str, Any]]:
        """Open a JSON document."""
        content = json.loads(self.path(name).read_text())
        yield content
        self.path(name).write_text(json.dumps(content))

    def replace(self, name: str, old: str, new: str) -> None:
        """Replace a piece of a text file."""
        text = self.path(name).read_text()
        assert old in text, f"{old!r} is not in {name}"
        self.path(name).write_text(text.replace(old, new))

    @contextmanager
    def fault(self, number: int) -> Iterator[dict[str, Any]]:
        """Open one line of the fault log: 0 is the absorb, 1 the kill, 2 the restart."""
        with self.lines("faults/faults.jsonl") as rows:
            yield rows[number]

    @contextmanager
    def subscription(self) -> Iterator[dict[str, Any]]:
        """Open the log of the subscription at s1."""
        with self.lines(f"raw/{NEAR}/subscriptions.jsonl") as rows:
            yield rows[0]


@dataclass
class Rows:
    """The records of one log; `all` is written back."""

    all: Any
    sidecar: dict[str, Any]

    def of(self, **columns: int) -> Any:
        """Return a mask of the rows that have all these values."""
        found = np.ones(len(self.all), bool)
        for name, value in columns.items():
            found &= self.all[name] == value
        return found

    def places(self, **columns: int) -> Any:
        """Return the indices of the rows that have all these values."""
        return np.flatnonzero(self.of(**columns))

    def drop(self, mask: Any) -> None:
        self.all = self.all[~mask]

    def insert(self, place: int, rows: Any) -> None:
        self.all = np.concatenate([self.all[:place], np.atleast_1d(rows), self.all[place:]])


@dataclass(frozen=True)
class Forgery:
    """One row of the table.

    Attributes:
        outcome: the outcome of both checkers that read the folder.
        says: the expected violation, or a piece of the doubt or refusal.
        online: the expected count of the online checker; "" if undetectable online.
        blind: the input that the online checker lacks, in a word.
        gated: whether the run has a subscription that started at a closed gate.
        sealed: whether the forger makes a new seal.
    """

    name: str
    change: Callable[[RunFolder], None]
    outcome: Outcome
    says: str
    online: str = ""
    blind: str = ""
    gated: bool = False
    sealed: bool = True


FORGERIES: dict[str, Forgery] = {}


def forgery(
    outcome: Outcome, says: str, *, online: str = "", blind: str = "", gated: bool = False,
    sealed: bool = True,
) -> Callable[[Callable[[RunFolder], None]], Callable[[RunFolder], None]]:  # fmt: skip
    assert bool(online) != bool(blind)

    def register(change: Callable[[RunFolder], None]) -> Callable[[RunFolder], None]:
        name = change.__name__
        FORGERIES[name] = Forgery(name, change, outcome, says, online, blind, gated, sealed)
        return change

    return register


def write_honest_run(folder: Path, run_id: str, *, gated: bool = False) -> Path:
    """Write a small VALID run; a gated run has a subscription that started late at a gate."""
    run = write_demo_run(folder, Scenario(run_id=run_id, bars=2, **DURATION))
    if gated:
        _close_gate(RunFolder(run))
        seal(run)
    return run


def write_ordered_run(folder: Path, run_id: str) -> Path:
    """Write an honest, complete run with a workload that requires a total order."""
    run = write_honest_run(folder, run_id)
    _put_in_order(RunFolder(run))
    seal(run)
    return run


def _put_in_order(run: RunFolder) -> None:
    """Sort the deliveries of each subscription by sequence number, then by publisher."""
    run.replace("spec/workload.toml", 'order = "publisher"', 'order = "total"')
    for process in (NEAR, FAR):
        with run.records(process, "deliveries") as rows:
            for subscription in sorted({*rows.all["subscription"].tolist()}):
                places = rows.places(subscription=subscription)
                part = rows.all[places]
                part = part[np.lexsort((part["publisher"], part["sequence"]))]
                part["received_ns"] = np.maximum.accumulate(part["received_ns"])
                rows.all[places] = part
            rows.all = rows.all[np.argsort(rows.all["received_ns"], kind="stable")]


def write_forged_run(folder: Path, run_id: str, forgery: Forgery) -> Path:
    """Write an honest run and apply a forgery."""
    run = write_honest_run(folder, run_id, gated=forgery.gated)
    forgery.change(RunFolder(run))
    if forgery.sealed:
        seal(run)
    return run


def _close_gate(run: RunFolder) -> None:
    """Cut s1 from b1 and p1 while it subscribes, and announce the withheld publications."""
    cut = {
        "verb": "cut", "params": {}, "t_planned_ns": ORIGIN_NS - 5 * SECOND,
        "t_requested_ns": ORIGIN_NS - 5 * SECOND, "t_applied_ns": ORIGIN_NS - 4 * SECOND,
        "t_observed_ns": ORIGIN_NS - 4 * SECOND, "t_healed_ns": ORIGIN_NS, "state": "healed",
    }  # fmt: skip
    names = ("fault_id", "step", "verb", "target", "params")
    for link in ("s1-b1", "s1-p1"):
        row = {**cut, "fault_id": f"cut-{link}", "step": f"cut-{link}", "target": link}
        with run.lines("faults/faults.jsonl") as rows:
            rows.append(row)
        with run.lines("faults/plan.jsonl") as rows:
            rows.append({name: row[name] for name in names})
    _withhold(run, WITHHELD)


def _withhold(run: RunFolder, last: int) -> None:
    """Withhold the first publications of each source from s1, with notices."""
    with run.records(NEAR, "deliveries") as rows:
        rows.sidecar["tables"]["partitions"] = [
            {"detector": "s1", "incarnation": 1, "number": 1, "nodes": ["b1", "p1"]}
        ]
        rows.drop(rows.of(subscription=S1) & (rows.all["sequence"] <= last))
        told_ns = int(rows.all["received_ns"].min()) - 1000
        notices = np.zeros(4, RECORDS["deliveries"])
        notices["sequence"], notices["digest"], notices["kind"] = 1, last, NOTICE
        notices["publisher"], notices["received_ns"] = range(4), told_ns
        notices["layer"], notices["subscription"] = 1, S1
        rows.insert(0, notices)
