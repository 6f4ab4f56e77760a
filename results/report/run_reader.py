"""Reader of run directories for the report."""

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet

from brokerd.quantiles import PERCENTILES
from results.checker.latency import AcrossClocks, judge_across_clocks, latency_percentiles
from results.checker.spark import plan_for
from results.figures.catalogue import draw
from results.figures.run_figures import RUN_FIGURES, narrow_svg
from results.rules.verdict_text import SOURCE
from results.tables.derived import read_verdict
from results.tables.frames import read_table
from results.tables.json_files import ResultsError, read_json, read_json_lines
from results.tables.load import table_folder
from results.tables.logs import read_processes
from results.tables.manifest import Run, read_run
from results.tables.schema import TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = Mapping[str, Any]

SHOWN_FIGURES: Mapping[str, str] = {each.name: each.title for each in RUN_FIGURES}
SHOWN_PERCENTILES = (*PERCENTILES,)


@dataclass(frozen=True)
class Picture:
    """A figure of the run; without `address` if drawing was impossible.

    Attributes:
        address, narrow_address: the picture, and a narrow picture for a telephone, as `data:`.
        caption: the content of the figure, or the reason for its absence.
    """

    name: str
    title: str
    address: str
    narrow_address: str
    caption: str


@dataclass(frozen=True)
class SubscriptionRow:
    """A subscription with owed deliveries, received deliveries and latencies.

    Attributes:
        owed, missing, undecided, duplicates, out_of_order: None if the run was not judged.
        latency_us: latency since the due time, by the names of SHOWN_PERCENTILES, of publications
            due during the measurement; empty without deliveries.
    """

    sub_id: str
    broker: str
    predicate: str
    owed: int | None = None
    missing: int | None = None
    undecided: int | None = None
    duplicates: int | None = None
    out_of_order: int | None = None
    latency_us: Mapping[str, int] = field(default_factory=dict)

    @property
    def delivered(self) -> int | None:
        """Return the number of owed deliveries that arrived."""
        if self.owed is None or self.missing is None or self.undecided is None:
            return None
        return self.owed - self.missing - self.undecided


@dataclass(frozen=True)
class BrokerRow:
    """The activity of a broker during the measurement.

    Attributes:
        cpu_us_per_message: processor time for each publication received.
    """

    name: str
    received: int
    sent: int
    resent: int
    duplicates: int
    cpu_us_per_message: float | None
    peak_queue: int
    peak_rss_bytes: int


@dataclass(frozen=True)
class EarlierRun:
    """The verdict and a few numbers of an earlier run.

    Attributes:
        verdict: VALID, INVALID, UNKNOWN or NOT JUDGED.
        headline: numbers of the run, as its manifest has them.
    """

    run_id: str
    verdict: str
    headline: Mapping[str, Any]


@dataclass(frozen=True)
class RunSummary:
    """A run in the form that the report shows.

    Attributes:
        verdict: the content of verdict.json; empty if the run was not judged.
        evidence: the earliest violations of each kind.
        across_clocks: latencies with stamps of different clocks; none in most runs.
        publishers: source → name of the publisher, for sources that the verdict mentions.
        earlier: earlier runs of the same experiment and protocol beside this run, newest first.
    """

    run: Run
    verdict: Mapping[str, Any]
    evidence: Sequence[Row]
    subscriptions: Sequence[SubscriptionRow]
    brokers: Sequence[BrokerRow]
    pictures: Sequence[Picture] = ()
    across_clocks: Sequence[AcrossClocks] = ()
    publishers: Mapping[str, str] = field(default_factory=dict)
    earlier: Sequence["EarlierRun"] = ()

    @property
    def word(self) -> str:
        """VALID, INVALID, UNKNOWN or NOT JUDGED."""
        return str(self.verdict.get("verdict", "not judged")).upper()

    def count_of(self, name: str) -> int | None:
        """Return a number of the verdict's counts."""
        value = (self.verdict.get("counts") or {}).get(name)
        return None if value is None else int(value)

    def exercise_of(self, name: str) -> int:
        """Return the extent to which the run exercised a property, in the unit of the property."""
        return int((self.verdict.get("exercised") or {}).get(name) or 0)

    @property
    def violations(self) -> Mapping[str, int]:
        return (self.verdict.get("counts") or {}).get("violations") or {}

    @property
    def order(self) -> str:
        """The order that decided the verdict."""
        return self.run.guarantee.with_promised_order(self.run.promises).order

    @property
    def measured_ns(self) -> int:
        """Return the duration of the measurement."""
        measure = self.run.phase("measure")
        return measure.to_ns - measure.from_ns


def read_summary(spark: "SparkSession", run_dir: Path) -> RunSummary:
    """Return the report's content for a run, with drawn figures."""
    summary = read_small_summary(run_dir)
    if (table_folder(summary.run, "deliveries")).is_dir():
        with plan_for(spark, _count_deliveries(summary.run)):
            latencies = _latencies(spark, summary.run)
            across = _read_across_clocks(spark, summary.run)
        subscriptions = [
            replace(row, latency_us=latencies.get(row.sub_id, {})) for row in summary.subscriptions
        ]
        summary = replace(summary, subscriptions=subscriptions, across_clocks=across)
    pictures = [_picture(spark, summary.run, name) for name in SHOWN_FIGURES]
    return replace(summary, pictures=pictures)


def read_small_summary(run_dir: Path) -> RunSummary:
    """Return the content that needs no Spark: everything but latencies and figures."""
    run = read_run(run_dir)
    verdict = run.derived / "verdict.json"
    evidence = run.derived / "evidence" / "delivery.jsonl"
    return RunSummary(
        run=run,
        verdict=(document := read_verdict(verdict, run.run_id) if verdict.is_file() else {}),
        evidence=(cases := [*read_json_lines(evidence, missing_ok=True)]),
        subscriptions=_subscriptions(run),
        brokers=_brokers(run),
        publishers=_publishers(run, document, cases),
        earlier=read_earlier(run),
    )


MOST_EARLIER = 10
_RUN_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{6}")


def read_earlier(run: Run) -> list[EarlierRun]:
    """Return the last complete runs of the same experiment and protocol before a run."""
    if not _RUN_ID.fullmatch(run.folder.name):
        return []
    found: list[EarlierRun] = []
    for folder in sorted(run.folder.parent.glob("[0-9]*"), reverse=True):
        path = folder / "manifest.json"
        if folder.name >= run.folder.name or not _RUN_ID.fullmatch(folder.name):
            continue
        try:
            manifest = read_json(path)
            verdict = folder / "verdict.json"
            word = read_json(verdict).get("verdict") if verdict.is_file() else None
        except (ResultsError, OSError):
            continue
        is_alike = manifest.get("protocol") == run.protocol and manifest.get("state") == "complete"
        headline = manifest.get("headline")
        if is_alike and isinstance(headline, Mapping):
            found.append(EarlierRun(folder.name, str(word or "not judged").upper(), headline))
        if len(found) == MOST_EARLIER:
            break
    return found


def _publishers(run: Run, verdict: Mapping[str, Any], evidence: Iterable[Row]) -> dict[str, str]:
    """Return source → name of the publisher, for the sources in a verdict."""
    texts = [*(verdict.get("because") or ()), *(verdict.get("doubts") or ())]
    named = {row["source"]: (row.get("publication") or {}).get("publisher") for row in evidence}
    sources = {source for text in texts for source in SOURCE.findall(str(text))} | named.keys()
    found = {source: str(name) for source, name in named.items() if name}
    if sources <= found.keys():
        return found
    rows = _rows(run, "publications", ("publisher", "pubend"))
    return found | {row["pubend"]: row["publisher"] for row in rows if row["publisher"]}


def _rows(run: Run, table: str, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return rows of a small table; empty if the run was never loaded."""
    folder = table_folder(run, table)
    if not any(folder.glob("*.parquet")):
        return []
    assert {*columns} <= {*TABLES[table].names}, columns
    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(folder, columns=[*columns]).to_pylist()
    return rows


def _subscriptions(run: Run) -> list[SubscriptionRow]:
    by_sub: dict[str, list[Row]] = {}
    columns = ("sub_id", "n_dup", "n_out_of_order", "n_owed", "n_missing", "n_undecided")
    for row in _rows(run, "coverage", columns):
        by_sub.setdefault(row["sub_id"], []).append(row)
    found = []
    for row in _rows(run, "subscriptions", ("sub_id", "broker", "predicate")):
        pairs = by_sub.get(row["sub_id"])
        stated = SubscriptionRow(row["sub_id"], row["broker"], row["predicate"] or "")
        if pairs is not None:
            stated = replace(
                stated,
                owed=_sum(pairs, "n_owed"),
                missing=_sum(pairs, "n_missing"),
                undecided=_sum(pairs, "n_undecided"),
                duplicates=_sum(pairs, "n_dup"),
                out_of_order=_sum(pairs, "n_out_of_order"),
            )
        found.append(stated)
    places = {broker: place for place, broker in enumerate(run.topology["brokers"])}
    return sorted(found, key=lambda row: (places.get(row.broker, len(places)), row.sub_id))


def _sum(rows: Iterable[Row], name: str) -> int:
    return sum(row[name] or 0 for row in rows)


def _brokers(run: Run) -> list[BrokerRow]:
    columns = ("t_ns", "broker", "cpu_ratio", "rss_bytes", "msgs_in", "msgs_out", "queue_msgs")
    rows = _rows(run, "broker_stats", (*columns, "counters"))
    measure = run.phase("measure")
    found = []
    for broker in run.topology["brokers"]:
        mine = sorted((row for row in rows if row["broker"] == broker), key=lambda r: r["t_ns"])
        if not mine:
            continue
        counters = [dict(row["counters"] or ()) for row in mine]
        pairs = [
            (before, row)
            for before, row in zip([None, *mine], mine, strict=False)
            if measure.from_ns < row["t_ns"] <= measure.to_ns
        ]
        received = _compute_growth(
            [row["msgs_in"] for row in mine], mine, measure.from_ns, measure.to_ns
        )
        used_ns = sum(
            (row["cpu_ratio"] or 0.0) * (row["t_ns"] - before["t_ns"])
            for before, row in pairs
            if before is not None
        )
        found.append(
            BrokerRow(
                name=broker,
                received=received,
                sent=_compute_growth(
                    [r["msgs_out"] for r in mine], mine, measure.from_ns, measure.to_ns
                ),
                resent=_compute_growth([c.get("resent_publications", 0) for c in counters], mine),
                duplicates=_compute_growth(
                    [c.get("duplicates_received", 0) for c in counters], mine
                ),
                cpu_us_per_message=used_ns / 1_000 / received if received else None,
                peak_queue=max(row["queue_msgs"] or 0 for row in mine),
                peak_rss_bytes=max(row["rss_bytes"] or 0 for row in mine),
            )
        )
    return found


def _compute_growth(
    values: Sequence[int | None],
    rows: Sequence[Row],
    from_ns: int = -(1 << 62),
    to_ns: int = 1 << 62,
) -> int:
    """Return the growth of a counter in a period; a lower value means a restart from 0."""
    grown, before = 0, 0
    for value, row in zip(values, rows, strict=True):
        now = value or 0
        if from_ns < row["t_ns"] <= to_ns:
            grown += now - before if now >= before else now
        before = now
    return grown


def _count_deliveries(run: Run) -> int:
    """Return the number of rows of the table `deliveries`."""
    files = table_folder(run, "deliveries").rglob("*.parquet")
    return sum(pyarrow.parquet.read_metadata(path).num_rows for path in files)


def _latencies(spark: "SparkSession", run: Run) -> dict[str, dict[str, int]]:
    """Return percentiles of response latency, by subscription."""
    deliveries = read_table(spark, "deliveries", table_folder(run, "deliveries"))
    return {
        row["sub_id"]: {name: row[f"response_{name}_us"] for name in SHOWN_PERCENTILES}
        for row in latency_percentiles(deliveries).toArrow().to_pylist()
    }


def _read_across_clocks(spark: "SparkSession", run: Run) -> list[AcrossClocks]:
    """Return latencies between clocks; reads nothing if all clients were on one machine."""
    clients = {process.host for process in read_processes(run) if process.role != "broker"}
    if all(run.clocks.share(a, b) for a in clients for b in clients):
        return []
    return judge_across_clocks(read_table(spark, "deliveries", table_folder(run, "deliveries")))


def _picture(spark: "SparkSession", run: Run, name: str) -> Picture:
    title = SHOWN_FIGURES[name]
    try:
        written = {path.suffix: path for path in draw(name, spark, run.folder)}
        narrow = narrow_svg(name, run.folder)
    except ResultsError as error:
        return Picture(name, title, "", "", str(error))
    return Picture(
        name,
        title,
        _address(written[".svg"].read_text(encoding="utf-8")),
        _address(narrow),
        str(read_json(written[".json"])["caption"]),
    )


def _address(svg: str) -> str:
    """Return a picture as an address, which isolates its styles and names, and disables scripts."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
