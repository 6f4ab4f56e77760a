"""The HTML page of run directories."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.figures.context import find_limiting_load_generator
from results.report import charts, text
from results.report.run_reader import SHOWN_FIGURES, SHOWN_PERCENTILES, RunSummary, read_summary
from results.tables.json_files import write_whole

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_EVIDENCE = 12
MOST_ROWS = 100
ON_CARDS = (
    *(
        "promised",
        "order promised",
        "deliveries owed",
        "delivered",
        "lost",
        "twice",
        "out of order",
    ),
    *("at risk", "of which arrived", "last of them after", "wrong"),
)
"""Numbers that the verdict's card contains already."""
DEFINITIONS: Mapping[str, str] = {
    "promised": "The guarantee that the workload asks for, or the protocol's own.",
    "order promised": "The publications between which the protocol keeps the order.",
    "published while measuring": "Data publications that were due in the measure phase.",
    "deliveries owed": "Pairs of a publication and a matching subscription that the guarantee "
    "covers. The judge derives them from the seed and the logs.",
    "delivered": "Owed deliveries that the application received.",
    "lost": "Owed deliveries that never arrived.",
    "twice": "Deliveries of a publication that the subscription had received before.",
    "out of order": "Deliveries after a later publication of the same order.",
    "at risk": "Owed deliveries whose publication was on its way, or was sent, while a fault was "
    "in effect on their path.",
    "of which arrived": "Deliveries at risk that arrived in the end.",
    "last of them after": "Time from the end of a fault to its last delivery at risk.",
    "wrong": "Deviations that the guarantee does not permit.",
    "sent again by brokers": "Publications that brokers sent a second time to a neighbour or "
    "client.",
    "median latency": "Half of all deliveries of the measure phase took at most this long: "
    "received minus due. `bench` prints the same number as p50.",
    "99 % latency": "99 of 100 deliveries of the measure phase took at most this long: received "
    "minus due. `bench` prints the same number as p99.",
    "median latency of the slowest subscription": "The largest of the medians of the single "
    "subscriptions.",
    "99 % latency of the slowest subscription": "The largest of the 99 % latencies of the single "
    "subscriptions.",
    "delivered per second": "Deliveries received in the measure phase, per second.",
    "limited by": "The part that was at its limit, if the run measured limits.",
    "CPU per delivery and broker": "Processor time of a broker in the measure phase per delivery "
    "of the run, the mean over all brokers. `bench` prints the same number.",
    "broker CPU per publication received": "Processor time of all brokers per publication that a "
    "broker received from a client or neighbour.",
    "CPU of all brokers per delivery": "Processor time of all brokers in the measure phase per "
    "delivery of the run.",
    "largest memory of a broker": "The largest resident memory of a broker in the run.",
    "on all disks at the end": "The size of all files of all brokers at the end of the run.",
}
"""The definition of each number, once; the same number has the same name in all outputs."""
TERMS: Mapping[str, str] = {
    "owed": "A delivery is owed if the filter of the subscription matches the publication, and the "
    "guarantee covers the pair. What is owed follows from the seed and the logs.",
    "at risk": "An owed delivery is at risk if a fault on its path was in effect while its "
    "publication was on the way. A run without risk shows little.",
    "absorbed": "A publication is absorbed if a broker or link under a fault accepts it and does "
    "not pass it on. A kill then loses all that was absorbed.",
    "drain": "After the measurement nothing new is published. The drain lasts until everything "
    "owed has arrived or is announced as a gap, or until its bound.",
    "limited by": "The part that was at its limit: the rate of the workload, a window, a broker, a "
    "load generator, or a machine. Only a limit of brokers is a result about brokers.",
}
"""Five terms that readers of a report need, each in two sentences."""
NOTHING = "nothing once something fails"
"""The promise of a protocol without guarantees."""


def write_report(
    spark: "SparkSession",
    run_dirs: Sequence[Path],
    output: Path,
    title: str = "",
    unpromised: Mapping[str, str] | None = None,
) -> Path:
    """Write a self-contained HTML page on one run, or on several side by side.

    The runs must have been checked (`checks.check_run`); an unchecked run is shown as not judged.
    Figures of a run are drawn first if possible. Equal run directories, with equal earlier runs
    beside them, result in equal bytes.

    Args:
        title: replaces the title made from protocol names.
        unpromised: protocols without the required promise, with the reason.

    Returns:
        The file written, whole or not at all.

    Raises:
        ResultsError: a folder contains no run.
        IntegrityError: a file of a run has changed since the run's end.
    """
    summaries = [read_summary(spark, Path(run_dir)) for run_dir in run_dirs]
    output = Path(output)
    write_whole(output, render(summaries, title, unpromised))
    return output


def render(
    summaries: Sequence[RunSummary], title: str = "", unpromised: Mapping[str, str] | None = None
) -> str:
    """Return the page for these runs, and for the entries of `unpromised`."""
    assert summaries, "a report on no run"
    protocols = [summary.run.protocol for summary in summaries]
    losing = [summary for summary in summaries if summary.violations]
    faulty = [summary for summary in summaries if summary.run.fault_rows]
    lanes = [charts.lanes_picture(summary) for summary in summaries]
    narrow_lanes = [charts.lanes_picture(summary, "narrow") for summary in summaries]
    kept = _promise_rows(summaries)
    comparison = _comparison(summaries)
    kinds = {kind for picture in lanes if picture for kind in picture.kinds}
    apart = unpromised or {}
    several = len(summaries) + len(apart) > 1
    return text.load_template("report.html").render(
        summaries=summaries,
        losing=losing,
        faulty=faulty,
        comparison=comparison,
        definitions=[(name, anchor(name), DEFINITIONS[name]) for name, _ in comparison],
        anchor=anchor,
        kept=kept,
        terms=[(name, term_anchor(name), text) for name, text in TERMS.items()],
        shared=charts.latency_picture(summaries, _names_of(summaries)),
        chart=charts,
        earlier_rows=_earlier_rows,
        several=several,
        apart=apart,
        lane_pictures=lanes,
        narrow_lane_pictures=narrow_lanes,
        lane_kinds=[kind for kind in charts.LANE_KINDS if kind in kinds],
        repeated={name: protocols.count(name) > 1 for name in protocols},
        headline=title or _headline(summaries),
        figure_titles=SHOWN_FIGURES,
        percentiles={name: _percentile_name(name) for name in SHOWN_PERCENTILES},
        stamps=charts.STAMP_NAMES,
        most_evidence=MOST_EVIDENCE,
        most_rows=MOST_ROWS,
        chapters=_chapters(
            losing, faulty, kept[0], several, any(summary.earlier for summary in summaries)
        ),
        words=text,
        on_cards=ON_CARDS,
    )


def _chapters(
    losing: Any, faulty: Any, kept: Any, several: bool, has_earlier: bool
) -> list[tuple[str, str]]:
    found = [
        ("wrong", "What went wrong") if losing else None,
        ("compare", "Side by side" if several else "In short"),
        ("kept", "Promised and done") if several and kept else None,
        ("risk", "What was at risk"),
        *SHOWN_FIGURES.items(),
        ("numbers", "The numbers"),
        ("earlier", "Beside earlier runs") if has_earlier else None,
        ("definitions", "What the numbers mean"),
        ("faults", "The faults") if faulty else None,
        ("provenance", "Where this comes from"),
    ]
    return [chapter for chapter in found if chapter]


def anchor(name: str) -> str:
    """Return the anchor of a number's definition on the page."""
    return f"means-{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}"


def term_anchor(name: str) -> str:
    """Return the anchor of a term in the box of terms."""
    return f"term-{name.replace(' ', '-')}"


def _names_of(summaries: Sequence[RunSummary]) -> list[str]:
    """Return the name of each run on the page, with its id where protocols repeat."""
    protocols = [text.title(text.protocol(summary)) for summary in summaries]
    return [
        f"{name} ({summary.run.run_id})" if protocols.count(name) > 1 else name
        for name, summary in zip(protocols, summaries, strict=True)
    ]


def _earlier_rows(summary: RunSummary) -> list[tuple[str, str, list[str]]]:
    """Return run id, verdict and numbers of this run and its last ten, newest first."""
    own = summary.run.manifest.get("headline") or {}
    rows = [(summary.run.run_id, summary.word, own)]
    rows += [(each.run_id, each.verdict, each.headline) for each in summary.earlier]
    return [(run_id, verdict, _numbers_of(headline)) for run_id, verdict, headline in rows]


def _numbers_of(headline: Mapping[str, Any]) -> list[str]:
    response = headline.get("response_us") or {}
    cells = [
        text.latency(round(response[key])) if isinstance(response.get(key), int | float) else "–"
        for key in ("p50", "p99")
    ]
    rate, cpu = headline.get("delivered_per_s"), headline.get("broker_cpu_us_per_message_mean")
    cells.append(f"{rate:,.0f}" if isinstance(rate, int | float) else "–")
    cells.append(f"{cpu:,.1f} µs" if isinstance(cpu, int | float) and cpu else "–")
    return cells


def _percentile_name(name: str) -> str:
    return {"p999": "99.9 %", "max": "largest"}.get(name, f"{name[1:]} %")


def _headline(summaries: Sequence[RunSummary]) -> str:
    first = summaries[0]
    if len(summaries) == 1:
        experiment = first.run.manifest.get("experiment") or "A run"
        preposition = "on" if text.protocol(first).startswith("the ") else "with"
        return f"{experiment} {preposition} {text.protocol(first)}"
    protocols = [*dict.fromkeys(text.bare(text.protocol(summary)) for summary in summaries)]
    if _comparable(summaries) and len(protocols) == len(summaries):
        among = "faults" if any(summary.run.fault_rows for summary in summaries) else "load"
        return f"The same {among}: {', '.join(protocols[:-1])} and {protocols[-1]}"
    return f"{len(summaries)} runs"


def _comparable(summaries: Sequence[RunSummary]) -> bool:
    """Return True if the runs had the same workload and faults, apart from the protocol."""

    def shape_of(summary: RunSummary) -> Mapping[str, Any]:
        without = {k: v for k, v in summary.run.workload.items() if k != "protocol"}
        steps = [(row["verb"], row["target"]) for row in summary.run.fault_rows]
        return {"workload": without, "links": summary.run.links, "faults": steps}

    return all(shape_of(summary) == shape_of(summaries[0]) for summary in summaries[1:])


def _comparison(summaries: Sequence[RunSummary]) -> list[tuple[str, list[str]]]:
    """Return a few numbers of all runs, side by side."""

    rows: Mapping[str, Callable[[RunSummary], str]] = {
        "promised": _describe_promised,
        "order promised": _order_promised,
        "published while measuring": lambda s: text.count(s.count_of("published_in_measure")),
        "deliveries owed": lambda s: text.count(s.count_of("owed")),
        "delivered": lambda s: text.count(s.count_of("delivered")),
        "lost": lambda s: _count_violated(s, "missing"),
        "twice": lambda s: _count_violated(s, "duplicate"),
        "out of order": lambda s: _count_violated(s, "reordered"),
        "at risk": lambda s: text.count(s.exercise_of("at_risk_deliveries") if s.verdict else None),
        "of which arrived": lambda s: text.count(s.exercise_of("recovered") if s.verdict else None),
        "last of them after": _recovery_time,
        "wrong": _wrong,
        "sent again by brokers": lambda s: text.count(s.exercise_of("resent_publications")),
        "median latency": lambda s: _latency(s, "p50"),
        "99 % latency": lambda s: _latency(s, "p99"),
        "median latency of the slowest subscription": lambda s: _slowest(s, "p50"),
        "99 % latency of the slowest subscription": lambda s: _slowest(s, "p99"),
        "delivered per second": _compute_delivery_rate,
        "limited by": _describe_limit,
        "CPU per delivery and broker": _cpu_per_delivery_and_broker,
        "broker CPU per publication received": cpu_per_message,
        "CPU of all brokers per delivery": _cpu_per_delivery,
        "largest memory of a broker": _largest_memory,
        "on all disks at the end": _on_disk,
    }
    table = [(name, [value(summary) for summary in summaries]) for name, value in rows.items()]
    return [row for row in table if {*row[1]} != {"–"}]


def _promise_rows(summaries: Sequence[RunSummary]) -> tuple[list[str], list[list[str]]]:
    """Return the faults of the schedule, and a row per run with promise and outcome per fault."""
    steps = [
        row["steps"][0] for summary in summaries for row in summary.verdict.get("recoveries") or ()
    ]
    faults = [*dict.fromkeys(steps)]
    rows = []
    for summary in summaries:
        became = {
            row["steps"][0]: text.describe_recovery(row)
            for row in summary.verdict.get("recoveries") or ()
        }
        cells = [became.get(fault, "–") for fault in faults]
        rows.append([_promise_of(summary), text.done(summary), *cells])
    return faults, rows


def _promise_of(summary: RunSummary) -> str:
    """Return the promise of another system, else the guarantee that the run was judged by."""
    system = summary.run.manifest.get("system") or {}
    if _promises(summary).get("exactly_once") is False and not system:
        return NOTHING
    return str(system.get("promise") or summary.verdict.get("guarantee") or "–")


def _promises(summary: RunSummary) -> Mapping[str, Any]:
    return summary.run.manifest.get("promises") or {}


def _order_promised(summary: RunSummary) -> str:
    """Return the order that a protocol of ours promises; "–" without the promise of delivery."""
    promises = _promises(summary)
    if summary.run.manifest.get("system") or not promises.get("exactly_once"):
        return "–"
    order = str(promises["order"])
    named = {"publisher": "of each publisher", "topic": "within a topic", "stream": "in parts"}
    return named.get(order, order)


def _describe_promised(summary: RunSummary) -> str:
    if _promises(summary).get("exactly_once") is False and not summary.run.manifest.get("system"):
        return NOTHING
    guarantee = summary.run.workload.get("guarantee") or {}
    return str(guarantee.get("delivery", "exactly-once")).replace("-", " ")


def _count_violated(summary: RunSummary, kind: str) -> str:
    """Return the number of violations of a kind, whether promised or not."""
    return text.count(summary.violations.get(kind, 0) if summary.verdict else None)


def _wrong(summary: RunSummary) -> str:
    """Return the broken promises; permitted deviations are counted elsewhere."""
    if not summary.verdict:
        return "–"
    return "nothing" if summary.word == "VALID" else text.violations(summary) or "nothing"


def _recovery_time(summary: RunSummary) -> str:
    """Return the time from the end of a fault to its last recovered delivery, over all faults."""
    found = [row["recovered_after_ns"] for row in summary.verdict.get("recoveries") or ()]
    known = [after_ns for after_ns in found if after_ns is not None]
    return f"{max(0, max(known)) / 1e9:,.2f} s" if known else "–"


def _compute_delivery_rate(summary: RunSummary) -> str:
    if find_limiting_load_generator(summary.run.manifest):
        return "–"
    headline = summary.run.manifest.get("headline") or {}
    value = headline.get("delivered_per_s")
    if not isinstance(value, int | float):
        return "–"
    earlier = headline.get("delivered_earlier")
    is_mixed = isinstance(earlier, int) and earlier
    return f"{value:,.0f}, with {earlier:,} sent earlier" if is_mixed else f"{value:,.0f}"


def _describe_limit(summary: RunSummary) -> str:
    if limit := find_limiting_load_generator(summary.run.manifest):
        return f"{limit}: no result of throughput"
    return (summary.run.manifest.get("headline") or {}).get("limited_by") or "–"


def _latency(summary: RunSummary, name: str) -> str:
    """Return a percentile over all deliveries, as `bench` prints it."""
    found = (summary.run.manifest.get("headline") or {}).get("response_us") or {}
    value = found.get(name)
    return text.latency(round(value)) if isinstance(value, int | float) else "–"


def _slowest(summary: RunSummary, name: str) -> str:
    """Return the largest of the subscriptions' percentiles, if there are several of them."""
    is_other = len(summary.subscriptions) > 1 or _latency(summary, name) == "–"
    return worst_latency(summary, name) if is_other else "–"


def _cpu_per_delivery_and_broker(summary: RunSummary) -> str:
    mean = (summary.run.manifest.get("headline") or {}).get("broker_cpu_us_per_message_mean")
    return f"{mean:,.1f} µs" if mean else "–"


def _cpu_per_delivery(summary: RunSummary) -> str:
    """Return the agents' measurements of processes, which include other systems' brokers."""
    headline = summary.run.manifest.get("headline") or {}
    mean, roles = (
        headline.get("broker_cpu_us_per_message_mean"),
        summary.run.manifest.get("roles", {}),
    )
    count = sum(role["role"] == "broker" for role in roles.values())
    return f"{mean * count:,.0f} µs" if mean else "–"


def _largest_memory(summary: RunSummary) -> str:
    largest = max((row.peak_rss_bytes for row in summary.brokers), default=0)
    return f"{largest / 1e6:,.0f} MB" if largest else "–"


def _on_disk(summary: RunSummary) -> str:
    """Return the size of all brokers' files."""
    sizes = summary.run.manifest.get("disk_bytes")
    return f"{sum(sizes.values()) / 1e6:,.1f} MB" if sizes else "–"


def worst_latency(summary: RunSummary, name: str) -> str:
    """Return the largest of the subscriptions' percentiles."""
    found = [row.latency_us[name] for row in summary.subscriptions if row.latency_us]
    return text.latency(max(found)) if found else "–"


def cpu_per_message(summary: RunSummary) -> str:
    """Return the processor time of all brokers per publication received by a broker."""
    known = [row for row in summary.brokers if row.cpu_us_per_message is not None]
    received = sum(row.received for row in known)
    if not received:
        return "–"
    used = sum((row.cpu_us_per_message or 0) * row.received for row in known)
    return f"{used / received:,.1f} µs"
