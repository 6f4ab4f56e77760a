"""Tests of the report: its text for runs of every kind, and its safety against hostile runs."""

import json
import re
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from bench.run.outcome import RunOutcome
from pubsubctl.runs.experiment import numbers_text
from results.checker.checks import check_run
from results.report import write_report
from results.report.charts import lanes_picture, latency_picture
from results.report.page import DEFINITIONS, TERMS, render, term_anchor
from results.report.run_reader import RunSummary, read_earlier
from results.report.text import (
    argument,
    command,
    fault_clock,
    latency,
    recovery,
    seconds,
    visible,
)
from results.tables.json_files import ResultsError
from tests.helpers.reports import INVALID, LOST, VALID, Page, summary_of
from tests.helpers.runs import Scenario, write_demo_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEST_EFFORT = Scenario(run_id="20260102T030605Z-0d4e5f", protocol="best_effort")
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{ 7*7 }}"


def flat(text: str) -> str:
    """Return a text without line breaks and hard spaces."""
    return " ".join(text.split())


def test_the_verdict_is_first_and_both_runs_are_side_by_side(tmp_path: Path) -> None:
    summaries = [
        summary_of(tmp_path),
        summary_of(tmp_path, INVALID, BEST_EFFORT, evidence=(LOST,)),
    ]
    text = flat(Page.of(render(summaries)).text)
    text = text[text.index("pubsubctl report") :]
    assert "The same faults: δ tree and best effort" in text
    in_order = (
        " VALID ",
        "408 deliveries of 8,923 were put at risk, and every one arrived.",
        " INVALID ",
        "2,199 missing. 8,923 owed = 6,720 delivered + 2,199 missing + 4 undecided.",
        "2,199 missing. 8,923 owed = 6,720 delivered + 2,199 missing + 4 undecided.",
        "p1/2 · 227",
        "p1 → b1 → s1",
        f"pubsubctl why p1/2:0:227 {LOST['subscription']} ",
        "Promised",
        "Published while measuring",
        "Lost",
        "nothing",
        "Promised and done, per fault",
        "nothing missing, repeated or out of order",
        "all 408 arrived",
        "2,199 missing",
        "never arrived",
        "received everything",
        "The checker was itself put to the test",
    )
    places = []
    for what in in_order:
        places.append(text.index(what, places[-1] + 1 if places else 0))
    assert places == sorted(places)
    assert "And 2,198 more" in text


def test_deliveries_at_risk_are_described_in_words(tmp_path: Path) -> None:
    text = flat(Page.of(render([summary_of(tmp_path)])).text)
    assert (
        "At 4.00 s b1 received everything and forwarded nothing for 1.10 s, then was killed with "
        "112 publications inside. 408 deliveries were routed through it meanwhile; all arrived, "
        "the last 0.33 s after the kill."
    ) in text
    assert (
        "In this run the brokers saw 4 sessions end, sent 112 publications again and recognised "
        "1 copy as seen before."
    ) in text


def test_losses_outside_the_times_of_risk_are_also_reported(tmp_path: Path) -> None:
    text = flat(Page.of(render([summary_of(tmp_path, INVALID, BEST_EFFORT)])).text)
    assert "were routed through it meanwhile; none arrived." in text
    assert "Another 1,791 deliveries, of publications sent outside these times" in text


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"at_risk": 0, "recovered": 0}, "Nothing was at risk."),
        (
            {"at_risk": 1, "recovered": 1},
            "1 delivery was routed through it meanwhile; it arrived, the",
        ),
        ({"recovered": 400}, "400 arrived, 8 never did."),
        ({"to_ns": None, "ended_by": "", "recovered_after_ns": None}, "until the end of the run."),
        ({"verb": "cut", "target": "b3-s3", "ended_by": "release"}, "the link b3-s3 was cut for"),
        ({"recovered_after_ns": -40_000_000}, "the last 0.04 s before the kill."),
        ({"verb": "freeze", "ended_by": "release"}, "b1 stood still for 1.10 s."),
        (
            {"verb": "host-loss", "target": "n1", "ended_by": "release"},
            "machine n1 was lost with all its brokers for 1.10 s.",
        ),
        (
            {"verb": "partition", "target": "p1,b1|b3", "ended_by": "release"},
            "p1, b1 and b3 no longer reached each other for 1.10 s.",
        ),
        (
            {"verb": "partition", "target": "b1", "ended_by": "release"},
            "b1 and all others no longer reached each other for 1.10 s.",
        ),
    ],
)
def test_every_course_of_a_fault_has_its_words(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    assert said in recovery(summary_of(tmp_path), {**VALID["recoveries"][0], **changes})


@pytest.mark.parametrize(
    "err_ns, said",
    [
        (0, "on the clock of the machine that measured."),
        (1_230_000, "the clocks of other machines are known to ±1.2 ms."),
        (None, "the clocks of all machines were not compared with it."),
    ],
)
def test_fault_times_state_their_clock_error(err_ns: int | None, said: str, tmp_path: Path) -> None:
    summary = summary_of(tmp_path)
    rows = tuple({**row, "err_ns": err_ns} for row in summary.run.fault_rows)
    assert fault_clock(replace(summary, run=replace(summary.run, fault_rows=rows))).endswith(said)


def test_the_page_asks_for_nothing_and_runs_nothing(tmp_path: Path) -> None:
    html = render(
        [summary_of(tmp_path), summary_of(tmp_path, INVALID, BEST_EFFORT, evidence=(LOST,))]
    )
    page = Page.of(html)
    assert page.faults == []
    assert "script" not in page.tags
    anchors = [address for address in page.addresses if address.startswith("#")]
    assert {address[1:] for address in anchors} <= {*page.ids}
    assert all(a.startswith(("data:", "#")) for a in page.addresses), page.addresses
    assert "default-src 'none'" in html
    assert "url(" not in page.style
    assert "@import" not in page.style
    assert {*re.findall(r"url\(([^)]*)\)", html)} <= {"#" + name for name in page.ids}
    assert len(page.ids) == len({*page.ids}), "ids must be unique"


def test_headings_go_down_one_step_at_a_time(tmp_path: Path) -> None:
    summaries = [summary_of(tmp_path), summary_of(tmp_path, INVALID, BEST_EFFORT, evidence=(LOST,))]
    for shown in (summaries, summaries[:1], summaries[1:]):
        headings = Page.of(render(shown)).headings
        assert headings[0] == 1
        assert headings.count(1) == 1
        steps = pairwise(headings)
        assert all(after <= before + 1 for before, after in steps), headings


def test_hostile_text_is_shown_and_does_nothing(tmp_path: Path) -> None:
    """Predicates, attributes, labels and commands of a run remain text."""
    wicked = {
        **LOST,
        "kind": HOSTILE,
        "meaning": HOSTILE,
        "source": HOSTILE,
        "subscription": HOSTILE,
        "path": [HOSTILE],
        "active_faults": [HOSTILE],
        "publication": {"t_sent_ns": 1, "attributes": {HOSTILE: "\x1b[31m=cmd\x00\u202e"}},
    }
    quoted = HOSTILE.replace('"', '\\"')
    summary = summary_of(
        tmp_path,
        {**INVALID, "because": [HOSTILE], "doubts": [HOSTILE], "guarantee": HOSTILE},
        BEST_EFFORT,
        evidence=(wicked,),
        changes={
            "manifest.json": ('"pubsubctl",', f'"pubsubctl", "{quoted}",'),
            "faults/faults.jsonl": ('"schedule"', f'"{quoted}"'),
        },
    )
    summary = replace(
        summary, subscriptions=[replace(row, predicate=HOSTILE) for row in summary.subscriptions]
    )
    page = Page.of(render([summary]))
    plain = Page.of(render([replace(summary, verdict=INVALID, evidence=[LOST])]))
    assert "script" not in page.tags
    assert page.tags.count("img") == plain.tags.count("img") == 0
    assert [fault for fault in page.faults if "has on" in fault] == []
    assert page.text.count(HOSTILE) >= 8
    assert "49" not in re.findall(r"alert\(2\)>(..)", page.text)
    assert not {*page.text} & {"\x1b", "\x00", "\u202e"}
    assert "�[31m=cmd��" in page.text


def test_control_and_direction_characters_are_made_visible() -> None:
    assert visible("a\x00b\x7fc\u202ed\u2028e\ud800") == "a�b�c�d�e�"
    assert visible("tab\tline\nδ → “ü”") == "tab\tline\nδ → “ü”"


def test_a_page_does_not_depend_on_the_location_of_its_run(tmp_path: Path) -> None:
    here = render([summary_of(tmp_path / "here")])
    there = render([summary_of(tmp_path / "somewhere" / "else")])
    assert here == there
    assert str(tmp_path) not in here


def test_a_calm_run_is_labelled_calm(tmp_path: Path) -> None:
    verdict = {**VALID, "calm": True, "exercised": {}, "recoveries": []}
    summary = summary_of(tmp_path, verdict)
    (summary.run.folder / "faults" / "faults.jsonl").unlink()
    summary = replace(summary, run=replace(summary.run, fault_rows=()))
    page = Page.of(render([summary]))
    assert "VALID (calm, made up)" in page.text
    assert "the workload is a calm one" in page.text
    assert "faults" not in page.ids
    assert lanes_picture(summary) is None


def test_a_rate_that_a_load_generator_limited_is_no_result(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, VALID)

    def shown(headline: dict[str, Any]) -> str:
        manifest = {**summary.run.manifest, "headline": headline}
        return flat(
            Page.of(render([replace(summary, run=replace(summary.run, manifest=manifest))])).text
        )

    rate = {"delivered_per_s": 1234.5, "limited_by": "broker b1: 99% of a core"}
    text = shown(rate)
    assert "1,234" in text
    assert "broker b1: 99% of a core" in text
    limit = {"limited_by": "load generator load-sub: 98%", "is_load_generator_limit": True}
    text = shown({**rate, **limit})
    assert "1,234" not in text
    assert "load generator load-sub: 98%: no result of throughput" in text


def test_the_page_of_a_run_without_faults_states_their_absence(tmp_path: Path) -> None:
    verdict = {**VALID, "verdict": "unknown", "because": ["nothing was at risk"], "recoveries": []}
    summary = summary_of(tmp_path, {**verdict, "exercised": {}})
    page = Page.of(render([replace(summary, run=replace(summary.run, fault_rows=()))]))
    assert "No fault was injected, so nothing was put at risk." in page.text
    assert "nothing was at risk" in page.text


def test_churn_is_described_if_no_fault_was_injected(tmp_path: Path) -> None:
    churn = {"absences": 40, "subscribers": 20, "away_ns_mean": 5_000_000_000, "at_risk": 900,
             "recovered": 900, "recovered_after_ns_max": 300_000_000}  # fmt: skip
    summary = summary_of(tmp_path, {**VALID, "recoveries": [], "churn": churn})
    page = Page.of(render([replace(summary, run=replace(summary.run, fault_rows=()))]))
    assert "20 subscribers lost the connection and returned, 40 times in all" in flat(page.text)
    assert "900 deliveries were for them meanwhile; all arrived, the last 0.30 s" in flat(page.text)
    assert "No fault was injected" not in page.text
    lossy = {**VALID, "churn": {**churn, "recovered": 880}}
    assert "880 arrived, 20 never did." in flat(
        Page.of(render([summary_of(tmp_path / "lossy", lossy)])).text
    )


def test_an_unknown_verdict_lists_its_reasons_first(tmp_path: Path) -> None:
    verdict = {**VALID, "verdict": "unknown", "because": ["a log was torn", "clock went back"]}
    text = flat(Page.of(render([summary_of(tmp_path, verdict)])).text)
    places = [text.index(what) for what in ("UNKNOWN", "a log was torn", "clock went back")]
    assert places == sorted(places)
    assert places[-1] < text.index("What was at risk")


def test_an_aborted_run_without_a_verdict_has_a_page(tmp_path: Path) -> None:
    summary = summary_of(
        tmp_path,
        None,
        changes={"manifest.json": ('"complete"', '"aborted", "reasons": ["b1 never came up"]')},
    )
    text = flat(Page.of(render([summary])).text)
    assert "NOT JUDGED" in text
    assert "the run is aborted: b1 never came up" in text
    assert f"pubsubctl check {summary.run.run_id}" in text


def test_a_command_names_a_run_outside_of_runs_by_its_folder() -> None:
    for name, words in (("20261130T000000Z-abcdef", None), ("the sample", "'runs/the sample'")):
        run: Any = SimpleNamespace(folder=Path("runs") / name, run_id="20261130T000000Z-abcdef")
        assert argument(run) == (words or run.run_id)


def test_a_run_without_a_measure_phase_has_a_page(tmp_path: Path) -> None:
    summary = summary_of(
        tmp_path, None, changes={"manifest.json": ('"origin_ns"', '"was_origin_ns"')}
    )
    summary = replace(summary, run=replace(summary.run, phases=(), fault_rows=()))
    text = flat(Page.of(render([summary])).text)
    assert "the run never reached its measure phase" in text


def test_runs_of_one_protocol_are_distinguished_by_their_ids(tmp_path: Path) -> None:
    other = Scenario(run_id="20260102T030605Z-0d4e5f")
    text = flat(Page.of(render([summary_of(tmp_path), summary_of(tmp_path, VALID, other)])).text)
    assert "2 runs" in text
    assert text.count(other.run_id) > 3


def test_a_protocol_without_promises_is_listed_with_its_reason(tmp_path: Path) -> None:
    apart = {"durable": "b1 never comes back"}
    summary = summary_of(tmp_path)
    for summaries in ([summary], [summary, summary]):
        text = flat(Page.of(render(summaries, "Gone", apart)).text)
        for heading in ("Side by side", "Promised and done, per fault"):
            table = text[text.rindex(heading) :]
            assert "Durable" in table
            assert "Not promised: b1 never comes back" in table


# --- The faults -----------------------------------------------------------------------------


@pytest.mark.parametrize("size", ["wide", "narrow"])
def test_faults_stand_in_lanes_with_all_their_stamps(size: Any, tmp_path: Path) -> None:
    summary = summary_of(tmp_path)
    picture = lanes_picture(summary, size)
    assert picture is not None
    (lane,) = picture.lanes
    assert [bar.kind for bar in lane.bars] == ["held", "down", "back"]
    stamps = sum(
        row[name] is not None
        for row in summary.run.fault_rows
        for name in row
        if name.startswith("t_")
    )
    assert len(lane.marks) == stamps
    places = [mark.x for mark in lane.marks]
    assert all(after - before >= 11 for before, after in pairwise(places))
    assert places[0] >= 0
    assert places[-1] <= picture.width
    assert [risk.label for risk in lane.risks] == ["408 at risk, all arrived"]


# --- Words and colours ----------------------------------------------------------------------


def test_numbers_have_three_digits_and_a_unit() -> None:
    said = [latency(us) for us in (0, 999, 1_000, 12_345, 999_999, 5_828_255, 123_456_789, None)]
    assert said == ["0 µs", "999 µs", "1.00 ms", "12.3 ms", "1.00 s", "5.83 s", "123 s", "–"]
    assert latency(-2_500) == "−2.50 ms"
    assert seconds(-1_500_000_000, 1) == "−1.5"
    assert command(["/usr/bin/pubsubctl", "bench", "a b"]) == "pubsubctl bench 'a b'"
    assert command(["/opt/it/pubsubctl/__main__.py", "demo"]) == "pubsubctl demo"


def luminance(colour: str) -> float:
    """Return the luminance of a colour such as #1d1b19, as in the accessibility guidelines."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_text_contrasts_with_its_background(tmp_path: Path) -> None:
    style = Page.of(render([summary_of(tmp_path)])).style
    parts = style.split(":root")[1:3]
    schemes = [dict(re.findall(r"--([\w-]+): (#\w{6})", part)) for part in parts]
    for colours in schemes:
        pairs = [
            (ink, ground)
            for ground in ("page", "card", "sunk")
            for ink in ("ink", "soft", "good", "bad", "doubt", "link")
        ]
        pairs += [(name, f"{name}-wash") for name in ("good", "bad", "doubt")]
        pairs += [("ink", f"{name}-wash") for name in ("held", "down", "back")]
        for ink, ground in pairs:
            lower, higher = sorted((luminance(colours[ink]), luminance(colours[ground])))
            contrast = (higher + 0.05) / (lower + 0.05)
            assert contrast >= 4.5, (ink, ground, round(contrast, 2))


# --- From run directories -------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.slow
def test_a_report_has_figures_and_percentiles_and_the_same_bytes_again(
    spark: "SparkSession", tmp_path: Path
) -> None:
    run = write_demo_run(tmp_path)
    check_run(spark, run)
    first = write_report(spark, [run], tmp_path / "new" / "report.html").read_bytes()
    page = Page.of(first.decode())
    assert page.faults == []
    pictures = [a for a in page.addresses if a.startswith("data:image/svg+xml;base64,")]
    assert len(pictures) == 8, "four figures, each for wide pages and telephones"
    assert "Not drawn" not in page.text
    assert re.search(r"s1-sub-1/1.{0,400}\d\.?\d* (µs|ms|s)", flat(page.text))

    moved = shutil.copytree(run, tmp_path / "moved" / run.name)
    shutil.rmtree(moved / "figures")
    assert write_report(spark, [moved], tmp_path / "again.html").read_bytes() == first
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["report.html"]


def test_a_folder_without_a_run_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="holds no run"):
        write_report(None, [tmp_path], tmp_path / "report.html")  # type: ignore[arg-type]
    assert not (tmp_path / "report.html").exists()


def test_a_publisher_has_one_name_and_each_number_one_definition(tmp_path: Path) -> None:
    lost = {**LOST, "publication": {**LOST["publication"], "publisher": "p1-pub-4"}}
    verdict = {
        **VALID,
        "verdict": "unknown",
        "because": ["10 deliveries of p1/2 are owed to subscription s"],
    }
    summaries = [
        summary_of(tmp_path, INVALID, BEST_EFFORT, evidence=(lost,)),
        summary_of(tmp_path, verdict, evidence=(lost,)),
    ]
    page = render(summaries)
    assert "p1-pub-4 · 227" in page
    assert "10 deliveries of p1-pub-4 are owed" in page
    assert "p1/2" not in page
    anchors = re.findall('class="means" href="#(.*?)"', page)
    assert anchors
    for place in anchors:
        assert page.count(f'<dt id="{place}">') == 1, place
    assert len({*DEFINITIONS.values()}) == len(DEFINITIONS)


def test_the_latency_and_cpu_of_a_report_are_those_of_the_terminal(tmp_path: Path) -> None:
    summary = summary_of(tmp_path)
    headline = {
        "response_us": {"p50": 1_230.0, "p99": 45_600.0},
        "broker_cpu_us_per_message_mean": 71.26,
    }
    manifest = {**summary.run.manifest, "headline": headline}
    summary = replace(summary, run=replace(summary.run, manifest=manifest))
    text = flat(Page.of(render([summary])).text)
    for words in (
        "Median latency 1.23 ms",
        "99 % latency 45.6 ms",
        "CPU per delivery and broker 71.3",
    ):
        assert words.replace(" ", "") in text.replace(" ", "")
    outcome = RunOutcome(
        run_directory=tmp_path,
        state="complete",
        response_us=headline["response_us"],
        broker_cpu_us_per_message={"b1": 71.26},
    )
    told = numbers_text(outcome)
    assert "latency p50 1.23 ms, p99 45.60 ms · 71.3 µs of CPU per delivery and broker" in told


def _with_headline(summary: RunSummary, p50_us: float, p99_us: float) -> RunSummary:
    headline = {"response_us": {"p50": p50_us, "p99": p99_us}, "delivered_per_s": 300.0}
    manifest = {**summary.run.manifest, "headline": headline, "drain": {"took_s": 1.5}}
    return replace(summary, run=replace(summary.run, manifest=manifest))


def test_a_report_explains_five_terms_where_they_are_used_and_names_commands(
    tmp_path: Path,
) -> None:
    page = render([_with_headline(summary_of(tmp_path), 700.0, 12_000.0)])
    assert {*TERMS} == {"owed", "at risk", "absorbed", "drain", "limited by"}
    for name in TERMS:
        place = term_anchor(name)
        assert page.count(f'<dt id="{place}">') == 1, name
        assert f'class="term" href="#{place}"' in page, name
    text = flat(Page.of(page).text)
    run_id = Scenario().run_id
    assert f"pubsubctl check {run_id} computes the numbers again" in text
    assert "The run is judged against exactly-once" in text
    assert "Half of all deliveries took at most 700 µs, and 99 % at most 12.0 ms." in text
    assert "The drain took 1.5 s." in text


def test_two_runs_have_their_latencies_on_shared_axes_with_values_under_the_pointer(
    tmp_path: Path,
) -> None:
    one = _with_headline(summary_of(tmp_path), 700.0, 12_000.0)
    other = _with_headline(summary_of(tmp_path, INVALID, BEST_EFFORT), 90.0, 150.0)
    page = render([one, other])
    assert Page.of(page).faults == []
    assert "<title>Best effort, 99 %: 150 µs</title>" in page
    assert "Latency of all runs, on shared axes" in page
    picture = latency_picture([one, other], ["one", "other"])
    assert picture is not None
    slow, fast = (line.points[1] for line in picture.lines)
    assert slow.x == fast.x
    assert slow.y < fast.y, "a larger latency is higher"
    assert len({line.dashes for line in picture.lines}) == 2, "not by colour alone"
    assert "on shared axes" not in render([one])


def test_a_run_stands_beside_the_last_ten_of_its_experiment(tmp_path: Path) -> None:
    summary = summary_of(tmp_path)
    ids = [f"20260101T0000{number:02d}Z-00000a" for number in range(12)]
    for number, run_id in enumerate(ids):
        folder = summary.run.folder.parent / run_id
        folder.mkdir()
        headline = {"response_us": {"p50": 1000.0 * (number + 1), "p99": 1e6}}
        manifest = {
            "protocol": summary.run.protocol if number else "best_effort",
            "state": "complete",
            "headline": headline,
        }
        (folder / "manifest.json").write_text(json.dumps(manifest))
        (folder / "verdict.json").write_text('{"verdict": "valid"}')
    earlier = read_earlier(summary.run)
    assert [each.run_id for each in earlier] == [*reversed(ids)][:10]
    page = flat(Page.of(render([replace(summary, earlier=earlier)])).text)
    assert "Beside earlier runs" in page
    assert re.search(rf"{ids[11]}\s*VALID\s*12\.0 ms\s*1\.00 s", page)
    assert ids[1] not in page
    (summary.run.folder.parent / ids[0] / "manifest.json").write_text("{}")
    assert "Beside earlier runs" not in render([summary])
