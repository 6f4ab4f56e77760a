"""Context of a run's figures: the run, its faults and subscribers, and stored numbers.

A figure is drawn from these numbers alone, so that drawing again needs neither Spark nor the logs.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brokerd.model.fault_verbs import VERB_TABLE
from results.figures.drawing import FIGURE_SCHEMA
from results.rules.facts import RunFacts
from results.rules.fault_log import FaultSpan, fault_spans
from results.rules.risks import Exposure, Routes, Tree, certain_window_ns, risk_windows
from results.rules.verdict_text import former_words
from results.tables.json_files import IntegrityError, read_json
from results.tables.load import LoadedRun


def describe_run(loaded: LoadedRun, facts: RunFacts) -> dict[str, Any]:
    """Return the part of a figure's data that is not in its columns."""
    run = loaded.run
    manifest = run.manifest
    ways = Tree(run.links) if run.routes is None else run.routes
    starts = sorted({source.broker for source in facts.sources})
    spans = fault_spans(run.fault_rows, run.phase("drain").to_ns or run.phase("measure").to_ns)
    return {
        "run_id": run.run_id,
        "experiment": manifest.get("experiment"),
        "limited_by": find_limiting_load_generator(manifest),
        "protocol": run.protocol,
        "protocol_name": run.words.bare if run.protocol else "",
        "wiring": run.words.wiring,
        "topology": run.topology.get("name"),
        "brokers": len(run.topology["brokers"]),
        "delta": run.delta,
        "publishers": len(facts.sources),
        "machines": run.clocks.machines({process.host for process in loaded.logs.processes}),
        "machine": {name: manifest.get(name) for name in ("cpu", "cores", "platform", "python")},
        "from_ns": run.phase("warmup").from_ns,
        "to_ns": run.phase("measure").to_ns,
        "faults": [
            {
                "step": span.step,
                "verb": span.verb,
                "target": span.target,
                "kind": span.kind,
                "from_ns": span.from_ns,
                "to_ns": span.to_ns,
            }
            for span in spans
        ],
        "subscriptions": [
            {
                "sub_id": subscription.sub_id,
                "broker": subscription.broker,
                "predicate": subscription.predicate,
                "faults": [*_faults_on_routes(ways, starts, subscription.broker, spans)],
            }
            for subscription in facts.subscriptions
        ],
    }


def _faults_on_routes(
    ways: Tree | Routes, starts: list[str], broker: str, spans: list[FaultSpan]
) -> list[int]:
    """Return the numbers of the faults on the routes of publications for this broker."""
    return [
        number
        for number, span in enumerate(spans)
        if any(ways.passes(span.parts, start, broker) for start in starts)
    ]


def exposure_rows(facts: RunFacts) -> list[tuple[str, str, int, int]]:
    """Return (subscription, source, from, to) for every period in which deliveries were at risk."""
    exposure = Exposure(facts.links, facts.faults, facts.routes)
    return [
        (subscription.sub_id, source.pubend, *certain_window_ns(window))
        for window in risk_windows(facts.faults)
        for subscription in facts.subscriptions
        for source in facts.sources
        if exposure.holds(
            window, source.name, source.broker, subscription.subscriber, subscription.broker
        )
    ]


def find_limiting_load_generator(manifest: Mapping[str, Any]) -> str:
    """Return the load generator that limited a run, in words; "" if none did.

    The throughput of a limited run is no result.
    """
    headline = manifest.get("headline") or {}
    return str(headline["limited_by"]) if headline.get("is_load_generator_limit") else ""


def scale_text(about: Mapping[str, Any]) -> str:
    """Return protocol, size and machine of a run, fit to begin a sentence."""
    machine = about["machine"]
    wiring = f" ({wiring_of(about)})" if wiring_of(about) else ""
    hardware = (
        f"{machine['cpu']}, {machine['cores']} cores" if machine["cpu"] else "unknown machine"
    )
    numbers = {"broker": about["brokers"], "publisher": about["publishers"],
               "subscription": len(about["subscriptions"])}  # fmt: skip
    size = ", ".join(f"{n:,} {noun}{'s' * (n != 1)}" for noun, n in numbers.items())
    machines = about.get("machines", 1)
    where = "all on one machine" if machines == 1 else f"on {machines} machines, one of them"
    name = about["protocol_name"]
    if name[0].isascii():  # δ stays small
        name = name[0].upper() + name[1:]
    limit = about.get("limited_by")
    no_result = f"; limited by {limit}, so no result of throughput" if limit else ""
    return f"{name}{wiring}, {size}; {where}: {hardware}; run {about['run_id']}{no_result}"


def wiring_of(about: Mapping[str, Any]) -> str:
    """Return the protocol's topology settings in words, also for numbers of an older version."""
    if "wiring" in about:
        return str(about["wiring"])
    return former_words(about["protocol"], about.get("delta")).wiring


def fault_label(fault: Mapping[str, Any]) -> str:
    """Return the effect of a fault, in two or three words."""
    verb = str(fault["verb"])
    label = VERB_TABLE[verb].label if verb in VERB_TABLE else ""
    return f"{fault['target']} {label or verb}"


Row = Mapping[str, Any]


@dataclass(frozen=True)
class FigureData:
    """The numbers of a figure.

    Attributes:
        name: of the figure.
        about: run, fault spans, captions: all content of the figure outside of columns.
        columns: names of the columns.
        rows: whole numbers, decimals and texts, in the order drawn; None for an empty cell.
    """

    name: str
    about: Mapping[str, Any]
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def records(self) -> list[dict[str, Any]]:
        """Return the rows by name of column."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    @classmethod
    def read(cls, folder: Path, name: str) -> "FigureData":
        """Return the numbers in `<name>.csv` and `<name>.json`, written by an earlier drawing.

        Raises:
            IntegrityError: the files are missing or are not of this figure.
        """
        words = read_json(folder / f"{name}.json")
        if (words.get("schema"), words.get("figure")) != (
            FIGURE_SCHEMA,
            name,
        ) or "about" not in words:
            raise IntegrityError(f"{folder / name}.json: not the words of figure {name}")
        path = folder / f"{name}.csv"
        if not path.is_file():
            raise IntegrityError(f"{path} is missing")
        columns, *rows = csv.reader(io.StringIO(path.read_text(encoding="utf-8")))
        values = tuple(tuple(map(_value, row)) for row in rows)
        return cls(name, words["about"], tuple(columns), values)


def figure_data(name: str, about: Mapping[str, Any], rows: Sequence[Row]) -> FigureData:
    """Return the numbers of rows that all have the same columns."""
    columns = tuple(rows[0]) if rows else ()
    return FigureData(name, about, columns, tuple(tuple(row.values()) for row in rows))


def _value(text: str) -> Any:
    """Return a cell's value, as a number if possible."""
    if text == "":
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text
