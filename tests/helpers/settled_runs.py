"""Recorded runs that a test changes: figures, digests and seals that follow the changed files."""

import json
import tarfile
import tomllib
from pathlib import Path
from typing import Any, Final

from bench.run.run_directory import specification_digest
from results.reference.history_reader import count_rows
from results.tables.seals import seal
from tests.helpers.false_witnesses import journal_change, renew_digests
from tests.helpers.forged_folders import RunFolder

PUBLISHERS: Final = "local1/load-pub"
SUBSCRIBERS: Final = "local1/load-sub"


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack a run; return its folder."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder


def with_repeated_settings(folder: Path) -> Path:
    """Write what today's processes repeat into a run of older ones; return its folder.

    Load generators repeat the keys of the workload that decide a verdict, and brokers repeat their
    parameters.
    """
    run = RunFolder(folder)
    workload = tomllib.loads(run.path("spec/workload.toml").read_text())
    parameters = json.loads(run.path("manifest.json").read_text())["parameters"]
    for path in sorted(folder.glob("raw/*/*/setting.json")):
        with run.document(path.relative_to(folder).as_posix()) as setting:
            setting |= {key: workload[key] for key in ("calm", "guarantee", "bars")}
    for path in sorted(folder.glob("raw/*/*/events.jsonl")):
        with run.lines(path.relative_to(folder).as_posix()) as rows:
            for row in rows:
                if row["event"] == "run_begun":
                    row["parameters"] = parameters
    renew_digests(run)
    seal(folder)
    return folder


def settle(run: RunFolder) -> None:
    """Renew figures, last counters, digests and the seal."""
    for path in sorted(run.folder.glob("raw/*/c*/events.jsonl")):
        name = path.relative_to(run.folder).as_posix()
        statistics = path.with_name("stats.jsonl").read_text().splitlines()
        with run.lines(name) as rows:
            for row in rows:
                if row["event"] == "run_ended":
                    last = json.loads(statistics[-1])
                    row["counters"] = {key: last[key] for key in last if key != "t_ns"}
    seal(run.folder)
    renew_headline(run)
    _renew_costs(run)
    renew_digests(run)
    seal(run.folder)


def renew_headline(run: RunFolder) -> None:
    """Renew the figures of the headline that are counted from records."""
    headline = count_rows(run.folder).headline
    assert headline is not None

    def renew(manifest: dict[str, Any]) -> None:
        told = manifest["headline"]
        measure = next(phase for phase in manifest["phases"] if phase["phase"] == "measure")
        length_ns = measure["t1_ns"] - measure["t0_ns"]
        told |= {
            "published": headline.published,
            "delivered": headline.delivered,
            "delivered_per_s": headline.delivered * 1e9 / length_ns,
            "delivered_earlier": headline.earlier,
            "delivered_new_per_s": (headline.delivered - headline.earlier) * 1e9 / length_ns,
        }
        for key in ("response_us", "service_us", "acknowledged_us"):
            told[key] = getattr(headline, key)
        online = json.loads(run.path(f"raw/{SUBSCRIBERS}/online.json").read_text())
        told["online"] = dict(online["totals"])

    journal_change(renew)(run)


def _renew_costs(run: RunFolder) -> None:
    """Renew the processor time per delivery from the processor times in the journal."""
    read = {
        row["stage"]: row["seconds"]
        for row in map(json.loads, run.path("log.jsonl").read_text().splitlines())
        if row["what"] == "processors"
    }
    used = [read["ended"][name] - read["begun"].get(name, 0.0) for name in read["ended"]]

    def renew(manifest: dict[str, Any]) -> None:
        told = manifest["headline"]
        costs = [each * 1e6 / told["delivered"] for each in used]
        told["broker_cpu_us_per_message_mean"] = sum(costs) / len(costs)

    journal_change(renew)(run)


def renew_specification(run: RunFolder) -> None:
    """Renew the digest of the specification in all files."""
    digest = specification_digest(run.path("spec"))
    journal_change(lambda manifest: manifest.update(specification_digest=digest))(run)
    with run.lines("log.jsonl") as rows:
        next(row for row in rows if row["what"] == "specification")["digest"] = digest
    for process in (PUBLISHERS, SUBSCRIBERS):
        with run.document(f"raw/{process}/setting.json") as setting:
            setting["specification_digest"] = digest


def folder_of(run: RunFolder, broker: str) -> str:
    """Return the place of a broker's files in a run folder."""
    return next(run.folder.glob(f"raw/*/{broker}")).relative_to(run.folder).as_posix()
