"""Synthetic runs with verdicts, made without Spark, and the contents of a report page."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow.parquet

from results.report.run_reader import RunSummary, read_small_summary
from results.tables.load import table_folder
from results.tables.logs import read_logs
from results.tables.manifest import read_run
from results.tables.small_tables import small_tables
from tests.helpers.runs import Scenario, write_demo_run

SECOND_NS = 1_000_000_000

VALID: Mapping[str, Any] = {
    "schema": "pubsubctl/verdict/1",
    "protocol": "delta_tree",
    "verdict": "valid",
    "calm": False,
    "exit_code": 0,
    "guarantee": "exactly-once, publisher order",
    "because": ["each of 8,923 owed deliveries arrived"],
    "doubts": [],
    "lines": ["VALID  exactly-once"],
    "counts": {
        "published_in_measure": 3000, "pairs": 20, "owed": 8923, "delivered": 8923,
        "violations": {},
    },
    "exercised": {
        "at_risk_deliveries": 408, "recovered": 408, "sessions_lost": 4,
        "resent_publications": 112, "duplicates_received": 1,
    },
    "recoveries": [
        {
            "faults": ["stall-b1", "kill-b1"], "steps": ["stall-b1", "kill-b1"], "verb": "absorb",
            "target": "b1", "from_ns": 4 * SECOND_NS, "to_ns": 5_100_000_000, "ended_by": "kill",
            "at_risk": 408, "recovered": 408, "recovered_after_ns": 330_000_000,
        }
    ],
    "canary": {"seen": ["one dropped", "one repeated"]},
    "not_checked": ["order across sources"],
}  # fmt: skip
INVALID: Mapping[str, Any] = {
    **VALID,
    "protocol": "best_effort",
    "verdict": "invalid",
    "exit_code": 1,
    "because": ["2,199 missing: owed and never delivered"],
    "counts": {
        **VALID["counts"],
        "delivered": 6720,
        "missing": 2199,
        "undecided": 4,
        "violations": {"missing": 2199},
    },
    "exercised": {"at_risk_deliveries": 408, "recovered": 0},
    "recoveries": [{**VALID["recoveries"][0], "recovered": 0, "recovered_after_ns": None}],
}
LOST: Mapping[str, Any] = {
    "kind": "missing",
    "meaning": "owed and never delivered",
    "subscription": "s1-sub-1/1",
    "source": "p1/2",
    "incarnation": 0,
    "sequence": 227,
    "t_ns": 4_009_000_000,
    "publication": {"t_sent_ns": 4_009_000_000, "attributes": {"symbol": "SYMBOL004"}},
    "path": ["p1", "b1", "s1"],
    "active_faults": ["absorb b1"],
}


def summary_of(
    folder: Path,
    verdict: Mapping[str, Any] | None = VALID,
    scenario: Scenario | None = None,
    *,
    evidence: tuple[Mapping[str, Any], ...] = (),
    changes: Mapping[str, Any] | None = None,
) -> RunSummary:
    """Return a synthetic run as the report reads it, without latencies and figures.

    Args:
        verdict: content of verdict.json; None for no file.
        changes: replacements of texts in files of the run, by file name.
    """
    scenario = scenario or Scenario()
    run = write_demo_run(folder, scenario)
    (run / "SHA256SUMS").unlink()
    for name, (old, new) in (changes or {}).items():
        text = (run / name).read_text()
        assert old in text, f"{name} does not hold {old!r}"
        (run / name).write_text(text.replace(old, new))
    if verdict is not None:
        document = {**verdict, "run_id": scenario.run_id}
        (run / "verdict.json").write_text(json.dumps(document))
        (run / "evidence").mkdir()
        (run / "evidence" / "delivery.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in evidence)
        )
        facts = read_run(run)
        for name, table in small_tables(facts, read_logs(facts)).items():
            table_folder(facts, name).mkdir(parents=True)
            pyarrow.parquet.write_table(table, table_folder(facts, name) / "part-0.parquet")
    return read_small_summary(run)


@dataclass
class Page(HTMLParser):
    """The content of a page.

    Attributes:
        addresses: all addresses that a browser may fetch or open.
        faults: forbidden content.
    """

    tags: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    headings: list[int] = field(default_factory=list)
    text: str = ""
    style: str = ""

    def __post_init__(self) -> None:
        super().__init__()
        self._open: list[str] = []

    @classmethod
    def of(cls, html: str) -> "Page":
        page = cls()
        page.feed(html)
        page.close()
        if page._open:
            page.faults.append(f"never closed: {page._open}")
        return page

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.tags.append(tag)
        if tag not in ("meta", "link", "img", "source", "br"):
            self._open.append(tag)
        for name, value in given.items():
            if name in ("src", "srcset", "href", "xlink:href", "action", "data", "poster"):
                self.addresses.append(value)
            if name.startswith("on"):
                self.faults.append(f"<{tag}> has {name}")
        if "id" in given:
            self.ids.append(given["id"])
        if tag == "img" and not given.get("alt"):
            self.faults.append("a picture without words")
        if tag == "svg" and "aria-hidden" not in given and given.get("role") != "img":
            self.faults.append("a drawing that is neither decoration nor a picture")
        if len(tag) == 2 and tag[0] == "h" and tag[1].isdigit():
            self.headings.append(int(tag[1]))

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if self._open and self._open[-1] == tag:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1] != tag:
            self.faults.append(f"</{tag}> inside {self._open[-3:]}")
        else:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if "style" in self._open:
            self.style += data
        else:
            self.text += data
