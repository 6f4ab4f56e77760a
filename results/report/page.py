"""From run directories to one HTML page."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from results.figures.context import limiting_load_generator
from results.report import fault_chart, words
from results.report.reading import SHOWN_FIGURES, SHOWN_PERCENTILES, RunStory, read_story

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_EVIDENCE = 12
MOST_ROWS = 100
ON_CARDS = ("deliveries owed", "delivered", "at risk", "of which arrived", "wrong")
"""Numbers that the verdict's card says already."""


def write_report(spark: "SparkSession", run_dirs: Sequence[Path], output: Path) -> Path:
    """Write one self-contained HTML page on one run, or on several side by side.

    The runs must have been checked (`checks.check_run`); one that was not is shown as
    not judged. Figures of a run are drawn first where they can be. The same run directories
    give the same bytes.

    Returns:
        The file written, whole or not at all.

    Raises:
        ResultsError: there is no run in a folder.
        IntegrityError: a file of a run is not what was written when it ended.
    """
    stories = [read_story(spark, Path(run_dir)) for run_dir in run_dirs]
    output = Path(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = output.with_name(f".{output.name}.new")
    temporary.write_text(render(stories), encoding="utf-8")
    temporary.replace(output)
    return output


def render(stories: Sequence[RunStory]) -> str:
    """The page for these runs."""
    assert stories, "a report on no run"
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("results.report"),
        autoescape=True,
        finalize=words.visible,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    protocols = [story.run.protocol for story in stories]
    losing = [story for story in stories if story.violations]
    faulty = [story for story in stories if story.run.fault_rows]
    lanes = [fault_chart.lanes_picture(story) for story in stories]
    narrow_lanes = [fault_chart.lanes_picture(story, "narrow") for story in stories]
    kinds = {kind for picture in lanes if picture for kind in picture.kinds}
    return environment.get_template("report.html").render(
        stories=stories,
        losing=losing,
        faulty=faulty,
        comparison=_comparison(stories),
        several_subscriptions=any(len(story.subscriptions) > 1 for story in stories),
        lane_pictures=lanes,
        narrow_lane_pictures=narrow_lanes,
        lane_kinds=[kind for kind in fault_chart.LANE_KINDS if kind in kinds],
        repeated={name: protocols.count(name) > 1 for name in protocols},
        headline=_headline(stories),
        figure_titles=SHOWN_FIGURES,
        percentiles={name: _percentile_name(name) for name in SHOWN_PERCENTILES},
        stamps=fault_chart.STAMP_NAMES,
        most_evidence=MOST_EVIDENCE,
        most_rows=MOST_ROWS,
        chapters=_chapters(losing, faulty, len(stories) > 1),
        words=words,
        on_cards=ON_CARDS,
    )


def _chapters(losing: Any, faulty: Any, several: bool) -> list[tuple[str, str]]:
    found = [
        ("wrong", "What went wrong") if losing else None,
        ("compare", "Side by side" if several else "In short"),
        ("risk", "What was at risk"),
        *SHOWN_FIGURES.items(),
        ("numbers", "The numbers"),
        ("faults", "The faults") if faulty else None,
        ("provenance", "Where this comes from"),
    ]
    return [chapter for chapter in found if chapter]


def _percentile_name(name: str) -> str:
    return {"p999": "99.9 %", "max": "largest"}.get(name, f"{name[1:]} %")


def _headline(stories: Sequence[RunStory]) -> str:
    first = stories[0]
    if len(stories) == 1:
        experiment = first.run.manifest.get("experiment") or "A run"
        preposition = "on" if words.protocol(first).startswith("the ") else "with"
        return f"{experiment} {preposition} {words.protocol(first)}"
    protocols = [*dict.fromkeys(words.bare(words.protocol(story)) for story in stories)]
    if _comparable(stories) and len(protocols) == len(stories):
        among = "faults" if any(story.run.fault_rows for story in stories) else "load"
        return f"The same {among}: {', '.join(protocols[:-1])} and {protocols[-1]}"
    return f"{len(stories)} runs"


def _comparable(stories: Sequence[RunStory]) -> bool:
    """Whether the runs were asked to do the same, but for the protocol."""

    def asked(story: RunStory) -> Mapping[str, Any]:
        without = {k: v for k, v in story.run.workload.items() if k != "protocol"}
        steps = [(row["verb"], row["target"]) for row in story.run.fault_rows]
        return {"workload": without, "links": story.run.links, "faults": steps}

    return all(asked(story) == asked(stories[0]) for story in stories[1:])


def _comparison(stories: Sequence[RunStory]) -> list[tuple[str, list[str]]]:
    """A few numbers of all runs, side by side."""

    rows: Mapping[str, Callable[[RunStory], str]] = {
        "published while measuring": lambda s: words.count(s.counted("published_in_measure")),
        "deliveries owed": lambda s: words.count(s.counted("owed")),
        "delivered": lambda s: words.count(s.counted("delivered")),
        "at risk": lambda s: words.count(s.exercised("at_risk_deliveries") if s.verdict else None),
        "of which arrived": lambda s: words.count(s.exercised("recovered") if s.verdict else None),
        "wrong": lambda s: (words.violations(s) or "nothing") if s.verdict else "–",
        "sent again by brokers": lambda s: words.count(s.exercised("resent_publications")),
        "median latency": lambda s: worst_latency(s, "p50"),
        "99 % latency": lambda s: worst_latency(s, "p99"),
        "delivered per second": _delivered_per_s,
        "limited by": _limited_by,
        "broker CPU per publication received": cpu_per_message,
    }
    table = [(name, [value(story) for story in stories]) for name, value in rows.items()]
    return [row for row in table if {*row[1]} != {"–"}]


def _delivered_per_s(story: RunStory) -> str:
    if limiting_load_generator(story.run.manifest):
        return "–"
    value = (story.run.manifest.get("headline") or {}).get("delivered_per_s")
    return f"{value:,.0f}" if isinstance(value, int | float) else "–"


def _limited_by(story: RunStory) -> str:
    if limit := limiting_load_generator(story.run.manifest):
        return f"{limit}: no result of throughput"
    return (story.run.manifest.get("headline") or {}).get("limited_by") or "–"


def worst_latency(story: RunStory, name: str) -> str:
    """The largest of the subscriptions' percentiles."""
    found = [row.latency_us[name] for row in story.subscriptions if row.latency_us]
    return words.latency(max(found)) if found else "–"


def cpu_per_message(story: RunStory) -> str:
    """Processor time of all brokers for each publication that one of them received."""
    known = [row for row in story.brokers if row.cpu_us_per_message is not None]
    received = sum(row.received for row in known)
    if not received:
        return "–"
    used = sum((row.cpu_us_per_message or 0) * row.received for row in known)
    return f"{used / received:,.1f} µs"
