"""Tests of run folders whose files contradict each other in times or specification."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from bench.run.run_directory import specification_digest
from results.rules.facts import RunFacts
from results.tables.json_files import IntegrityError
from results.tables.load import LoadedRun
from results.tables.logs import read_logs
from results.tables.manifest import read_run
from results.tables.record_files import STRETCH
from results.tables.seals import seal
from tests.helpers.folded import folded_copy
from tests.helpers.forged_folders import FAR, LAST, NEAR, PUBLISHERS, RunFolder, write_honest_run
from tests.helpers.judged_folders import FolderVerdict, by_reference, histories_of, on_spark
from tests.helpers.runs import MILLISECOND, ORIGIN_NS, SECOND, write_lines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Change = Callable[[RunFolder], None]
PROMISES = {"exactly_once": True, "order": "publisher", "gaps": [], "redelivers": False}
SCHEDULE = 'schema = "pubsubctl/faults/1"\nname = "demo"\n'


@dataclass(frozen=True)
class Case:
    """A row of the table.

    Attributes:
        base: the honest run behind the changed run.
        outcome: "doubt" or "refused".
        says: pieces of the doubt or refusal of both judges.
        digest: true if the forger records a new digest of the specification.
    """

    change: Change
    base: str
    outcome: str
    says: tuple[str, ...]
    digest: bool


CASES: dict[str, Case] = {}


def _case(
    *says: str, base: str = "full", outcome: str = "doubt", digest: bool = True
) -> Callable[[Change], Change]:
    def register(change: Change) -> Change:
        CASES[change.__name__] = Case(change, base, outcome, says, digest)
        return change

    return register


def _spec(old: str, new: str, name: str = "workload.toml") -> Change:
    return lambda run: run.replace(f"spec/{name}", old, new)


def _row(name: str, change: Change, *says: str, **more: Any) -> None:
    CASES[name] = Case(
        change,
        more.get("base", "full"),
        more.get("outcome", "doubt"),
        says,
        more.get("digest", True),
    )


def take_digest(folder: Path, *, manifest: bool = True, journal: bool = True) -> None:
    """Record the present digest of the specification."""
    digest = specification_digest(folder / "spec")
    path = folder / "manifest.json"
    document = json.loads(path.read_text())
    if manifest:
        document |= {"schema": "pubsubctl/manifest/1", "specification_digest": digest}
    path.write_text(json.dumps(document))
    if journal:
        line = {
            "t_ns": 1, "what": "specification", "digest": digest,
            "promises": document.get("promises"),
        }  # fmt: skip
        write_lines(folder / "log.jsonl", [line, {"t_ns": 2, "what": "end"}])


def write_witnessed_run(folder: Path, run_id: str) -> Path:
    """Write an honest run with all present witnesses."""
    run = write_honest_run(folder, run_id)
    with RunFolder(run).document("manifest.json") as manifest:
        manifest["promises"] = PROMISES
        manifest["drain"] = {"ended_by": "evidence", "took_s": 2.5, "waiting_for": ""}
    (run / "spec" / "placement.json").write_text('{"brokers": []}\n')
    take_digest(run)
    seal(run)
    return run


# --- Schedules --------------------------------------------------------------------------------

PUBLISHED = ("publications.rec", "spec/workload.toml")


@_case(*PUBLISHED, "intended times of p1/1")
def the_schedule_of_a_source_is_later(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "publications") as rows:
        rows.all["intended_ns"][rows.of(publisher=1)] += 20_000


@_case(*PUBLISHED, "intended times of p1/0")
def what_was_held_up_was_meant_later(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "publications") as rows:
        held = rows.of(publisher=0) & (rows.all["sequence"] > 20) & (rows.all["sequence"] < 26)
        rows.all["intended_ns"][held] = rows.all["sent_ns"][held]


@_case(*PUBLISHED, "1 intended times of p1/2", "the first is of publication 9")
def one_was_meant_when_it_was_sent(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "publications") as rows:
        (place,) = rows.places(publisher=2, sequence=10)
        rows.all["intended_ns"][place] = rows.all["sent_ns"][place]


@_case(*PUBLISHED, "intended times of p1/3")
def a_schedule_began_a_period_early(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "publications") as rows:
        data = rows.of(publisher=3) & (rows.all["sequence"] > 1) & (rows.all["sequence"] < LAST)
        rows.all["intended_ns"][data] -= SECOND // 10


@_case(*PUBLISHED, "2 intended times of p1/0")
def two_changed_their_times(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "publications") as rows:
        (a,), (b,) = rows.places(publisher=0, sequence=7), rows.places(publisher=0, sequence=6)
        times = rows.all["intended_ns"]
        times[[a, b]] = times[[b, a]]
        rows.all["sent_ns"][b] = rows.all["sent_ns"][a]


@_case("publications.rec", "were sent before spec/workload.toml")
def sent_before_it_was_due(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "publications") as rows:
        late = rows.all["sent_ns"] - rows.all["intended_ns"]
        rows.all["sent_ns"] -= 2 * np.minimum(late, 400_000)


_row("a_rate_twice_as_high", _spec('"10/s"', '"20/s"'), *PUBLISHED, "intended times")
_row("a_rate_half_as_high", _spec('"10/s"', '"5/s"'), *PUBLISHED, "intended times")
_row("a_rate_by_the_hour", _spec('"10/s"', '"35000/h"'), *PUBLISHED, "intended times")
_row(
    "arrivals_by_chance",
    _spec('rate = "10/s"', 'rate = "10/s"\narrivals = "poisson"'),
    *PUBLISHED,
    "intended times",
)
_row("a_rate_without_a_limit", _spec('"10/s"', '"max"'), *PUBLISHED, "intended times")


@_case(*PUBLISHED, "sent its closing fence after 40")
def a_second_is_left_out_at_the_end(run: RunFolder) -> None:
    run.replace("spec/workload.toml", 'measure = "3.0s"', 'measure = "4.0s"')
    with run.document("manifest.json") as manifest:
        for phase in manifest["phases"]:
            if phase["phase"] == "measure":
                phase["t1_ns"] += SECOND
            if phase["phase"] == "drain":
                phase["t0_ns"] += SECOND


# --- Lateness ---------------------------------------------------------------------------------


def _late(share: int) -> Change:
    """Return a change: every `share`th publication was sent 300 ms late, and later ones waited."""

    def change(run: RunFolder) -> None:
        with run.records(PUBLISHERS, "publications") as rows:
            late = rows.all["sequence"] % share == 0
            rows.all["sent_ns"][late] += 300 * MILLISECOND
            rows.all["sent_ns"] = np.maximum.accumulate(rows.all["sent_ns"])
        for process in (NEAR, FAR):
            with run.records(process, "deliveries") as rows:
                rows.all["received_ns"] += 400 * MILLISECOND
        with run.records(PUBLISHERS, "acks") as rows:
            rows.all["acked_ns"] += 400 * MILLISECOND

    return change


LATE = ("publications.rec", "manifest.json reports that the load generators held their rate")


def _blocked(ms: int) -> Change:
    """Make brokers hold up publications, though for a short time."""

    def change(run: RunFolder) -> None:
        with run.lines(f"raw/{PUBLISHERS}/stats.jsonl") as lines:
            for place, line in enumerate(lines):
                line["blocked_us"] = 1000 * ms * place // (len(lines) - 1)
        _late(5)(run)

    return change


_row("more_was_late_than_was_kept_waiting", _blocked(20), *LATE)
_row("a_tenth_was_late", _late(10), *LATE)
_row("all_were_late", _late(1), *LATE)
_row("more_than_the_limit_was_late", _spec('"< 100ms"', '"< 10us"'), *LATE)


# --- Phases -----------------------------------------------------------------------------------


def _phase(name: str, **shifts_ns: int) -> Change:
    def change(run: RunFolder) -> None:
        with run.document("manifest.json") as manifest:
            (phase,) = (each for each in manifest["phases"] if each["phase"] == name)
            for end, shift_ns in shifts_ns.items():
                phase[end] += shift_ns

    return change


def _drain(**values: Any) -> Change:
    def change(run: RunFolder) -> None:
        with run.document("manifest.json") as manifest:
            manifest["drain"] |= values

    return change


BOTH = ("manifest.json", "spec/workload.toml")
_row("measured_for_less", _phase("measure", t1_ns=-SECOND), *BOTH, "phase measure lasted 2.000 s")
_row("measured_for_more", _phase("measure", t1_ns=SECOND), *BOTH, "phase measure lasted 4.000 s")
_row("measured_a_little_less", _phase("measure", t1_ns=-5 * MILLISECOND), *BOTH, "2.995 s")
_row("warmed_up_for_more", _phase("warmup", t0_ns=-SECOND), *BOTH, "phase warmup lasted 2.000 s")
_row("warmed_up_for_less", _phase("warmup", t1_ns=-SECOND // 2), *BOTH, "warmup lasted 0.500 s")
_row("a_longer_measurement_is_asked_for", _spec('"3.0s"', '"6s"'), *BOTH, "has 6.000 s")
_row("a_longer_warm_up_is_asked_for", _spec('"1s"', '"2s"'), *BOTH, "has 2.000 s")
_row("phases_are_at_once", _phase("drain", t0_ns=-2 * SECOND), "drain began before phase measure")
_row("a_drain_outlasts_its_phase", _drain(took_s=9.0), "manifest.json", "the drain lasted 3.000 s")
_row(
    "a_drain_outlasts_its_bound",
    lambda run: (
        _drain(took_s=2_000.0, ended_by="silence")(run),
        _phase("drain", t1_ns=2_000 * SECOND)(run),
    )[-1],
    "the drain lasted 2000.000 s",
)


@_case(*BOTH, "phase warmup lasted no time")
def no_warm_up(run: RunFolder) -> None:
    with run.document("manifest.json") as manifest:
        manifest["phases"] = [p for p in manifest["phases"] if p["phase"] != "warmup"]


@_case("manifest.json", "phase measure began -0.500 s after its own origin")
def another_origin(run: RunFolder) -> None:
    with run.document("manifest.json") as manifest:
        manifest["origin_ns"] += SECOND // 2


# --- The run's bounds -------------------------------------------------------------------------

OUTSIDE = "stamped outside the phases of manifest.json"


def _stamped(process: str, layout: str, column: str, place: int, at_ns: int) -> Change:
    def change(run: RunFolder) -> None:
        with run.records(process, layout) as rows:
            rows.all[column][place] = at_ns

    return change


_row(
    "received_an_hour_later",
    _stamped(NEAR, "deliveries", "received_ns", -1, ORIGIN_NS + 3_600 * SECOND),
    "load-local2/deliveries.rec: 1 records",
    OUTSIDE,
)
_row(
    "received_long_before",
    _stamped(FAR, "deliveries", "received_ns", 0, ORIGIN_NS - 60 * SECOND),
    "load-local3/deliveries.rec",
    OUTSIDE,
)
_row(
    "acknowledged_after_the_run",
    _stamped(PUBLISHERS, "acks", "acked_ns", -1, ORIGIN_NS + 60 * SECOND),
    "acks.rec",
    OUTSIDE,
)


@_case("publications.rec", OUTSIDE)
def a_fence_before_the_run(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "publications") as rows:
        for column in ("sent_ns", "intended_ns"):
            rows.all[column][0] = ORIGIN_NS - 20 * SECOND


@_case("deliveries.rec", OUTSIDE)
def everything_a_minute_later(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        rows.all["received_ns"] += 60 * SECOND


# --- Stretches --------------------------------------------------------------------------------

LEVEL = ("deliveries.rec", "spec/workload.toml: load.records = ")
_row("stretches_where_none_may_be", _spec('"hist"', '"full"'), *LEVEL, "no time", base="hist")
_row("a_smaller_sample_than_asked_for", _spec('"hist"', '"sampled"'), *LEVEL, base="hist")
_row("a_larger_sample_than_asked_for", _spec('"sampled"', '"hist"'), *LEVEL, base="sampled")


def _sample(value: Any) -> Change:
    def change(run: RunFolder) -> None:
        with run.records(NEAR, "deliveries") as rows:
            rows.sidecar["tables"]["sample"] = value

    return change


_row("a_sample_of_its_own", _sample({"block": 16, "one_in": 64}), *LEVEL, base="hist")
_row("no_sample", _sample(None), *LEVEL, base="hist")
_row("a_sample_of_all", _sample({"block": 16, "one_in": 16}), *LEVEL)


@_case("deliveries.rec", "stretches last up to", "load.records", base="hist")
def a_stretch_that_hides_a_stall(run: RunFolder) -> None:
    with run.records(FAR, "deliveries") as rows:
        folded = np.flatnonzero(rows.all["kind"] == STRETCH)
        rows.all["partition"][folded[len(folded) // 2]] = 900


@_case("deliveries.rec", "stretches last up to", base="sampled")
def all_stretches_are_longer(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        rows.all["partition"][rows.all["kind"] == STRETCH] += 500


# --- The specification ------------------------------------------------------------------------

OTHER = "the digest of the specification is"


def _text(name: str, text: str) -> Change:
    def change(run: RunFolder) -> None:
        path = run.path(f"spec/{name}")
        path.write_text((path.read_text() if path.is_file() else "") + text)

    return change


for _name, _change in {
    "a_word_more": _text("workload.toml", "# as it was\n"),
    "fewer_are_asked_for": _spec("deliveries_per_pair_min = 2", "deliveries_per_pair_min = 1"),
    "nothing_need_break": _spec("calm = false", "calm = true"),
    "less_is_promised": _spec('"exactly-once"', '"at-least-once"'),
    "no_order_is_asked_for": _spec('"publisher"', '"none"'),
    "holes_may_be": _spec("gapless = true", "gapless = false"),
    "a_longer_drain_is_allowed": _spec('drain = "30s"', 'drain = "60s"'),
    "another_name_for_a_topology": _text("topology.toml", "# as it was\n"),
    "a_file_more": _text("faults.toml", SCHEDULE),
    "a_file_less": lambda run: run.path("spec/placement.json").unlink(),
}.items():
    _row(_name, _change, "log.jsonl", OTHER, "spec/", digest=False)


def _digests(*, manifest: bool, journal: bool) -> Change:
    def change(run: RunFolder) -> None:
        _text("workload.toml", "# as it was\n")(run)
        take_digest(run.folder, manifest=manifest, journal=journal)

    return change


_row(
    "only_the_manifest_was_told",
    _digests(manifest=True, journal=False),
    "log.jsonl",
    OTHER,
    digest=False,
)
_row(
    "only_the_journal_was_told",
    _digests(manifest=False, journal=True),
    "manifest.json",
    OTHER,
    digest=False,
)


@_case("manifest.json has no digest", digest=False)
def the_manifest_forgets(run: RunFolder) -> None:
    with run.document("manifest.json") as manifest:
        del manifest["specification_digest"]


@_case("log.jsonl has no digest", digest=False)
def the_journal_forgets(run: RunFolder) -> None:
    write_lines(run.path("log.jsonl"), [{"t_ns": 2, "what": "end"}])


@_case("log.jsonl has no digest", digest=False)
def there_is_no_journal(run: RunFolder) -> None:
    run.path("log.jsonl").unlink()


@_case("manifest.json has no digest", digest=False)
def a_manifest_of_an_older_version(run: RunFolder) -> None:
    with run.document("manifest.json") as manifest:
        del manifest["specification_digest"]
        manifest["schema"] = "pubsubctl/manifest/1"


@_case("log.jsonl", "the brokers promised", "manifest.json has", digest=False)
def less_was_promised(run: RunFolder) -> None:
    with run.document("manifest.json") as manifest:
        manifest["promises"] = {**PROMISES, "order": "none"}


@_case("log.jsonl", "the brokers promised", "manifest.json has", digest=False)
def gaps_were_promised(run: RunFolder) -> None:
    with run.document("manifest.json") as manifest:
        manifest["promises"] = {**PROMISES, "gaps": ["released"], "redelivers": True}


# --- What no judge can read -------------------------------------------------------------------

WORKLOAD = "spec/workload.toml"
for _old, _new, *_says in (
    ("calm = false", 'calm = "false"', "calm = 'false'"),
    ("calm = false", "calm = 0", "calm = 0"),
    ('order = "publisher"', 'order = "publishr"', "guarantee.order = 'publishr'", "'publisher'"),
    ('"exactly-once"', '"exactly_once"', "guarantee.delivery = 'exactly_once'", "'exactly-once'"),
    ("gapless = true", "gapless = 1", "guarantee.gapless = 1"),
    ("gapless = true", 'gapless = "yes"', "guarantee.gapless = 'yes'"),
    ("gapless = true", "gaples = true", "guarantee: unknown key 'gaples'", "'gapless'"),
    ("choose = 10", "choose = [nan]", "attributes.symbol.choose[0]"),
    ("choose = 10", "choose = [inf, 1]", "attributes.symbol.choose[0]"),
    ("choose = 10", "choos = 10", "attributes.symbol = {'choos': 10}"),
    ("uniform = [1, 500]", "uniform = [1, nan]", "attributes.price.uniform[1]"),
    ("deliveries_per_pair_min = 2", "deliveries_per_pair_min = -1", "deliveries_per_pair_min = -1"),
    ("deliveries_per_pair_min = 2", 'deliveries_per_pair_min = "2"', "deliveries_per_pair_min"),
    ('measure = "3.0s"', 'measure = "3 parsecs"', "phases.measure = '3 parsecs'"),
    ('measure = "3.0s"', "measure = 3", "phases.measure = 3"),
    ("seed = 11", "seed = 1.5", "seed = 1.5"),
    ("seed = 11", "seed = true", "seed = True"),
    ("count = 4", "count = true", "publishers[0].count = True"),
    ('"hist"', '"hst"', "load.records = 'hst'", "'hist'"),
):
    _row(
        f"unreadable: {_new}",
        _spec(_old, _new),
        WORKLOAD,
        *_says,
        base="hist" if "hst" in _new else "full",
        outcome="refused",
    )
_row(
    "unreadable: a link to nobody",
    _spec('"b4"]', '"b44"]', "topology.toml"),
    "spec/topology.toml",
    "no broker 'b44'",
    "'b4'",
    outcome="refused",
)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("honest")
    found = {"full": write_witnessed_run(folder, "honest-full")}
    for level in ("sampled", "hist"):
        found[level] = folded_run(found["full"], folder / level, level)
    old = Path(shutil.copytree(found["full"], folder / "old"))
    with RunFolder(old).document("manifest.json") as manifest:
        manifest |= {"schema": "pubsubctl/manifest/1", "run_id": "honest-full"}
        del manifest["specification_digest"]
    write_lines(old / "log.jsonl", [{"t_ns": 2, "what": "end"}])
    seal(old)
    return {**found, "old": old}


def folded_run(run: Path, folder: Path, level: Any) -> Path:
    copy = folded_copy(run, folder, level)
    take_digest(copy)
    seal(copy)
    return copy


@pytest.fixture(scope="module")
def folders(
    tmp_path_factory: pytest.TempPathFactory, is_drawn: Callable[[str], bool]
) -> dict[str, Path]:
    """Return the folders of the drawn cases."""
    folder = tmp_path_factory.mktemp("contradictions")
    return {
        name: forged_run(folder, name, f"forged-{number}")
        for number, name in enumerate(CASES)
        if is_drawn(name)
    }


def forged_run(folder: Path, name: str, run_id: str) -> Path:
    """Return the run of a case, sealed again."""
    case = CASES[name]
    run = write_witnessed_run(folder, run_id)
    if case.base != "full":
        run = folded_run(run, folder / f"{run_id}-folded", case.base)
    case.change(RunFolder(run))
    if case.digest:
        take_digest(run)
    seal(run)
    return run


def wrong(judged: dict[str, FolderVerdict]) -> dict[str, FolderVerdict]:
    return {
        name: found
        for name, found in judged.items()
        if found.outcome != CASES[name].outcome or not found.names(*CASES[name].says)
    }


def test_the_reference_doubts_no_honest_run(honest: dict[str, Path]) -> None:
    judged = {name: by_reference(history) for name, history in histories_of(honest).items()}
    assert {name: each.said for name, each in judged.items()} == dict.fromkeys(honest, ())
    assert {each.outcome for each in judged.values()} == {"VALID"}


def test_the_facts_of_the_first_judge_hold_no_doubt_of_an_honest_run(
    honest: dict[str, Path],
) -> None:
    for name, folder in honest.items():
        run = read_run(folder)
        assert RunFacts.from_run(LoadedRun(run, read_logs(run))).doubts == (), name


@pytest.mark.parametrize("name", CASES)
def test_each_is_doubted_by_name(tmp_path: Path, name: str) -> None:
    """Both judges read these facts of a folder before the rows, so Spark is not needed."""
    run = forged_run(tmp_path, name, "forged")
    (history,) = histories_of({name: run}).values()
    assert wrong({name: by_reference(history)}) == {}
    if CASES[name].outcome == "refused":
        with pytest.raises(IntegrityError) as refusal:
            read_run(run)
        assert FolderVerdict("refused", (str(refusal.value),)).names(*CASES[name].says)
        return
    loaded = read_run(run)
    facts = RunFacts.from_run(LoadedRun(loaded, read_logs(loaded)))
    assert FolderVerdict("doubt", facts.doubts).names(*CASES[name].says)


@pytest.mark.spark
def test_spark_doubts_each(spark: "SparkSession", folders: dict[str, Path]) -> None:
    judged = on_spark(spark, folders, histories_of(folders))
    assert wrong(judged) == {}
    assert judged.keys() == folders.keys()


@pytest.mark.spark
def test_spark_doubts_no_honest_run(spark: "SparkSession", honest: dict[str, Path]) -> None:
    judged = on_spark(spark, honest, histories_of(honest))
    assert judged == dict.fromkeys(honest, FolderVerdict("VALID", ()))


def test_the_table_has_its_stated_length() -> None:
    outcomes = [case.outcome for case in CASES.values()]
    assert (len(outcomes), outcomes.count("refused")) == (79, 20)
