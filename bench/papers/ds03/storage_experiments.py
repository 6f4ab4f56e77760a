"""Cost of storage for publications that durable subscribers may miss, by method.

    pubsubctl experiment ds03.pfs

All methods store the same events for the same subscribers on the same disk, fsync once per second
of the workload, and drop events after some seconds. Reads are compared with the expected events.

Paper: [DS03] §5.1.2.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from bench.papers.ds03.storage_methods import WAYS, WORD, StorageMethod, Wanted
from bench.papers.experiments import ExperimentRecord, RunContext, Tables
from bench.spec.experiment import ExperimentFile, Row

Positive = Annotated[int, Field(ge=1, le=1_000_000, strict=True)]


class StorageExperiment(ExperimentFile):
    """A workload at the highest rate.

    Attributes:
        seconds: length of the workload.
        kinds: kinds of events, in turn; a subscriber wants a single kind.
        event_bytes: size of an event with its headers.
        kept_s: age at which events are dropped.
        repetitions: repetitions of all methods in sequence, in a different order every time.
    """

    schema_: Annotated[Literal["pubsubctl/storage-experiment/1"], Field(alias="schema")]
    seconds: Positive
    events_per_s: Positive
    subscribers: Positive
    kinds: Positive
    event_bytes: Annotated[int, Field(ge=WORD, le=1 << 20, strict=True)]
    kept_s: Positive
    repetitions: Positive

    def scale(self) -> Row:
        return {
            "events": self.seconds * self.events_per_s,
            "subscribers": self.subscribers,
            "for_each": self.subscribers // self.kinds,
            "event_bytes": self.event_bytes,
            "repetitions": self.repetitions,
        }


def compute_rows(experiment: StorageExperiment, context: RunContext) -> Tables:
    """Return the rows of every table, measured on the disk of the run folders.

    Raises:
        AssertionError: a method returned other events than it stored.
    """
    scratch = context.runs / f".storage-{os.getpid()}"
    return {"stored": _rows(experiment, scratch, context.progress.phase)}


def _rows(
    experiment: StorageExperiment, scratch: Path, phase: Callable[[str], None]
) -> Iterator[Row]:
    names = [*WAYS]
    for run in range(experiment.repetitions):
        for place in range(len(names)):
            name = names[(place + run) % len(names)]
            phase(f"{name}, {run + 1} of {experiment.repetitions}")
            scratch.mkdir()
            try:
                yield {"way": name, "run": run, **measure(experiment, WAYS[name], scratch)}
            finally:
                shutil.rmtree(scratch)


def measure(
    experiment: StorageExperiment, method: type[StorageMethod], folder: Path
) -> dict[str, Any]:
    """Return the result of a method, in an empty folder."""
    subscribers = range(1, experiment.subscribers + 1)
    with closing(method(folder, subscribers)) as store:
        return _fill(experiment, store, subscribers)


def _fill(
    experiment: StorageExperiment, store: StorageMethod, subscribers: range
) -> dict[str, Any]:
    by_kind = [
        [each for each in subscribers if each % experiment.kinds == kind]
        for kind in range(experiment.kinds)
    ]
    kept = experiment.kept_s * experiment.events_per_s
    wall_s = processor_s = 0.0
    written, matches = 0, 0
    for second in range(experiment.seconds):
        first = second * experiment.events_per_s + 1
        wanted: Wanted = {
            tick: by_kind[tick % experiment.kinds]
            for tick in range(first, first + experiment.events_per_s)
        }
        events = {tick: _event(tick, experiment.event_bytes) for tick in wanted}
        matches += sum(map(len, wanted.values()))
        began = time.perf_counter(), time.process_time(), _count_written_bytes()
        store.drop(first - 1 - kept)
        store.write(events, wanted)
        wall_s += time.perf_counter() - began[0]
        processor_s += time.process_time() - began[1]
        written += _count_written_bytes() - began[2]
    last = experiment.seconds * experiment.events_per_s
    for subscriber in (1, experiment.subscribers):
        _check(store, subscriber, last - kept, last, experiment)
    return {
        "wall_s": wall_s,
        "processor_s": processor_s,
        "written_bytes": written,
        "syncs": store.syncs,
        "events": last,
        "matches": matches,
    }


def _event(tick: int, size: int) -> bytes:
    return tick.to_bytes(WORD, "big").ljust(size, b"e")


def _check(
    store: StorageMethod, subscriber: int, after: int, last: int, experiment: StorageExperiment
) -> None:
    kind = subscriber % experiment.kinds
    expected = [
        tick for tick in range(max(after, 0) + 1, last + 1) if tick % experiment.kinds == kind
    ]
    found = store.missed(subscriber, max(after, 0))
    assert found == expected, (
        f"{type(store).__name__}: {len(found)} for {subscriber}, not {len(expected)}"
    )


def _count_written_bytes() -> int:
    """Return the number of bytes that this process has passed to write calls."""
    for line in Path("/proc/self/io").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == "wchar":
            return int(value)
    raise OSError("/proc/self/io has no line wchar; run on Linux")


RECORD = ExperimentRecord({"": StorageExperiment}, compute_rows, kind="storage", is_measured=True)
