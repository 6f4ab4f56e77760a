"""Throughput of subscribers without state, with a commit per event at their broker.

    pubsubctl experiment ds03.jms

There is a publishers' broker and a subscribers' broker, on this machine. All subscribers receive
all events, and wait for the commit of an event before the next event. Consumption starts when
everything is published.

Paper: [DS03] §5.2 (JMS auto-acknowledge).
"""

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import trio
from pydantic import Field

from bench.papers.experiments import ExperimentRecord, RunContext, Tables
from bench.spec.experiment import ExperimentFile, Row
from brokerd.client.client import connect
from brokerd.interpreter import module_command
from brokerd.wire.attributes import encode_attributes

NAMES = ("p1", "s1")
_TOPOLOGY = """
schema = "pubsubctl/topology/2"
name = "consumers"
kind = "cells"
brokers = ["p1", "s1"]
[cells]
bundles = [["p1", "s1"]]
[parameters.durable]
token_lanes = {lanes}
token_batch = {batch}
"""
_STOPS_S = 20

Positive = Annotated[int, Field(ge=1, le=1_000_000, strict=True)]


class ConsumerExperiment(ExperimentFile):
    """A number of deliveries, for few subscribers and for many.

    Attributes:
        subscribers: numbers of subscribers, in sequence.
        ways: lanes, and greatest number of commits per transaction, with 0 for any.
        deliveries: total of each run; every event is for all subscribers.
        seconds: time limit of a run.
        event_bytes: size of an event's payload.
        processes: number of processes of the subscribers.
    """

    schema_: Annotated[Literal["pubsubctl/consumer-experiment/1"], Field(alias="schema")]
    subscribers: tuple[Positive, ...]
    ways: tuple[tuple[Positive, Annotated[int, Field(ge=0, le=1_000_000, strict=True)]], ...]
    deliveries: Positive
    seconds: Positive
    event_bytes: Annotated[int, Field(ge=0, le=1 << 20, strict=True)]
    processes: Positive
    repetitions: Positive

    def scale(self) -> Row:
        return {
            "subscribers": max(self.subscribers),
            "subscribers_least": min(self.subscribers),
            "deliveries": self.deliveries,
            "event_bytes": self.event_bytes,
            "repetitions": self.repetitions,
        }


def compute_rows(experiment: ConsumerExperiment, context: RunContext) -> Tables:
    """Return the rows of every table, measured on this machine."""
    scratch = context.runs / f".consumers-{os.getpid()}"
    return {"consumed": _rows(experiment, scratch, context.progress.phase)}


def _rows(
    experiment: ConsumerExperiment, scratch: Path, phase: Callable[[str], None]
) -> Iterator[Row]:
    for run in range(experiment.repetitions):
        for lanes, batch in experiment.ways:
            for subscribers in experiment.subscribers:
                phase(f"{subscribers} subscribers, {lanes} lanes, batch {batch}, run {run + 1}")
                scratch.mkdir(mode=0o700)
                try:
                    found = measure(experiment, subscribers, lanes, batch, scratch)
                finally:
                    shutil.rmtree(scratch)
                way = {"subscribers": subscribers, "lanes": lanes, "batch": batch, "run": run}
                yield {**way, **found}


def measure(
    experiment: ConsumerExperiment, subscribers: int, lanes: int, batch: int, folder: Path
) -> dict[str, Any]:
    """Return the result of a run, with its files in an empty folder."""
    addresses = _configure(folder, lanes, batch)
    started: list[subprocess.Popen[str]] = []
    try:
        for name in NAMES:
            config = str(folder / name / "broker.toml")
            started.append(_start("brokerd", "--config", config))
        events = max(1, experiment.deliveries // subscribers)
        clients = []
        for place in range(experiment.processes):
            first, end = (subscribers * each // experiment.processes for each in (place, place + 1))
            if end > first:
                clients.append(
                    _start(
                        "bench.papers.ds03.consumer_process", addresses["s1"], str(first),
                        str(end - first), str(events), str(experiment.seconds),
                    )
                )  # fmt: skip
        started += clients
        for client in clients:
            assert client.stdout is not None
            assert client.stdout.readline(), f"clients have ended: {client.poll()}"
        trio.run(_publish, addresses["p1"], events, experiment.event_bytes)
        for client in clients:
            assert client.stdin is not None
            client.stdin.write("\n")
            client.stdin.flush()
        results = [json.loads(client.communicate()[0]) for client in clients]
        trio.run(trio.sleep, 1.5)  # brokers record their counters once a second
        counters = _counters(folder / "s1")
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            try:
                process.wait(_STOPS_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
    return {
        "consumed": sum(each["consumed"] for each in results),
        "wall_s": max(each["last_s"] for each in results),
        "commits": counters["tokens_committed"],
        "transactions": counters["token_transactions"],
    }


def _configure(folder: Path, lanes: int, batch: int) -> Mapping[str, str]:
    topology = folder / "topology.toml"
    topology.write_text(_TOPOLOGY.format(lanes=lanes, batch=batch), encoding="utf-8")
    holders = [socket.socket() for _ in NAMES]
    for holder in holders:  # bound at the same time, so that all ports differ
        holder.bind(("127.0.0.1", 0))
    addresses = {
        name: f"127.0.0.1:{holder.getsockname()[1]}"
        for name, holder in zip(NAMES, holders, strict=True)
    }
    for holder in holders:
        holder.close()
    for name in NAMES:
        own = folder / name
        own.mkdir(mode=0o700)
        values = {
            "broker": name,
            "topology_file": str(topology),
            "protocol": "durable",
            "deployment_id": "consumers",
            "listen": addresses[name],
            "state_folder": str(own / "state"),
            "control_socket": str(own / "control"),
            "log_folder": str(own / "log"),
        }
        lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        lines += ["[addresses]", *(f'{key} = "{value}"' for key, value in addresses.items())]
        (own / "broker.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return addresses


def _start(module: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        module_command(module, *arguments),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


async def _publish(address: str, events: int, size: int) -> None:
    """Publish all events. All events are logged on return."""
    blob = encode_attributes({"kind": "a"})
    async with connect(address, "publisher", publishes=True) as client:
        at_once = 100
        for first in range(0, events, at_once):
            count = min(at_once, events - first)
            await client.publish_many((blob,), bytes(count), size, bytes(count * size))
        await client.flush()


def _counters(folder: Path) -> Mapping[str, int]:
    """Return the last recorded counters of a broker."""
    (path,) = (folder / "log").rglob("stats.jsonl")
    found: Mapping[str, int] = json.loads(path.read_text(encoding="utf-8").splitlines()[-1])
    return found


RECORD = ExperimentRecord(
    {"": ConsumerExperiment}, compute_rows, kind="consumers", protocol="durable", is_measured=True
)
