"""Lies of load generators: counts, settings and reservations."""

import json
import tomllib
from collections.abc import Callable
from typing import Any

from tests.helpers.false_witnesses.lies import (
    PUBLISHERS,
    SECOND,
    SUBSCRIBERS,
    Change,
    add_lie,
    journal_change,
    register_lie,
    renew_digests,
)
from tests.helpers.forged_folders import RunFolder

# --- Load generators -----------------------------------------------------------------------------


def _found_online(kind: str) -> Change:
    """Return a change that adds an online anomaly to the headline and the journal."""

    def change(run: RunFolder) -> None:
        with run.document(f"raw/{SUBSCRIBERS}/online.json") as online:
            online["totals"][kind] += 1
            online["lanes"][0][kind] += 1
            if kind == "missing":
                online["totals"]["owed"] += 1
                online["lanes"][0]["owed"] += 1
            totals = dict(online["totals"])
        journal_change(lambda manifest: manifest["headline"].update(online=totals))(run)

    return change


for _kind in ("missing", "fence_missing", "phantom", "withheld_late", "withheld_delivered"):
    add_lie(f"the_online_checker_found_{_kind}", _found_online(_kind), f"disagree on {_kind}")


@register_lie("answers before their publication")
def acknowledgements_came_before_publications(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "acks") as rows:
        rows.all["acked_ns"][:20] = rows.all["acked_ns"][0] - SECOND // 10


@register_lie("delivered up to")
def deliveries_were_counted_late(run: RunFolder) -> None:
    with run.lines(f"raw/{SUBSCRIBERS}/stats.jsonl") as rows:
        for row in rows[:-1]:
            row["delivered"] = 0


@register_lie("sent up to")
def publications_were_counted_late(run: RunFolder) -> None:
    with run.lines(f"raw/{PUBLISHERS}/stats.jsonl") as rows:
        for row in rows[:-1]:
            row["sent"] = 0


@register_lie("loadgen_saturated")
def every_second_was_late(run: RunFolder) -> None:
    with run.lines(f"raw/{PUBLISHERS}/stats.jsonl") as rows:
        for row in rows:
            row["saturated"] = True


@register_lie("an absence of")
def somebody_was_away_without_churn(run: RunFolder) -> None:
    with run.document("manifest.json") as manifest:
        left_ns = manifest["origin_ns"] + SECOND
    line = {"subscriber": "c3-sub-1", "t_left_ns": left_ns, "t_back_ns": left_ns + SECOND // 50}
    run.path(f"raw/{SUBSCRIBERS}/absences.jsonl").write_text(json.dumps(line) + "\n")


@register_lie("disagree on withheld")
def a_repeated_delivery_was_kept_back(run: RunFolder) -> None:
    with run.lines(f"raw/{SUBSCRIBERS}/stats.jsonl") as rows:
        rows[-1]["withheld"] = 1


# --- Counters ------------------------------------------------------------------------------------


@register_lie("publications received: ")
def brokers_received_nothing(run: RunFolder) -> None:
    for path in sorted(run.folder.glob("raw/*/c?/stats.jsonl")):
        with run.lines(path.relative_to(run.folder).as_posix()) as rows:
            for row in rows:
                row["publications_received"] = 0


@register_lie("publications received by c1")
def the_home_of_all_publishers_received_less(run: RunFolder) -> None:
    with run.lines("raw/local1/c1/stats.jsonl") as rows:
        for row in rows:
            row["publications_received"] //= 2


@register_lie("stats.jsonl and raw/local1/load-pub/publications.rec disagree: nothing was written")
def statistics_of_a_load_generator_are_cut_in_the_middle(run: RunFolder) -> None:
    with run.lines(f"raw/{PUBLISHERS}/stats.jsonl") as rows:
        rows[:] = [*rows[:2], *rows[-2:]]


@register_lie("offered up to")
def more_was_offered(run: RunFolder) -> None:
    with run.lines(f"raw/{PUBLISHERS}/stats.jsonl") as rows:
        for row in rows:
            row["offered"] *= 3


@register_lie("offered up to")
def the_last_offers_are_fewer(run: RunFolder) -> None:
    with run.lines(f"raw/{PUBLISHERS}/stats.jsonl") as rows:
        for row in rows[-2:]:
            row["offered"] -= 1


@register_lie("reservations behind their first publication")
def numbers_were_reserved_afterwards(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "publications") as publications:
        last_ns = publications.all["sent_ns"].max()
    with run.records(PUBLISHERS, "intents") as rows:
        rows.all["at_ns"] = last_ns


@register_lie("disagree on answers: ")
def acknowledgements_came_twice(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "acks") as rows:
        rows.insert(5, rows.all[4])
    with run.lines(f"raw/{PUBLISHERS}/stats.jsonl") as lines:
        lines[-1]["acknowledged"] += 1


@register_lie("disagree on numbers with two answers")
def an_acknowledgement_is_of_another_source(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "acks") as rows:
        rows.all["publisher"][60] ^= 1
    renew_digests(run)


@register_lie("disagree on numbers with two answers")
def an_acknowledgement_is_of_the_number_before(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "acks") as rows:
        for column in ("first", "last"):
            rows.all[column][-1] -= 1
    renew_digests(run)


@register_lie("before they were reserved")
def another_incarnation_reserved_the_numbers(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "intents") as rows:
        rows.all["incarnation"][0] += 1
    renew_digests(run)


def _empty(name: str) -> Change:
    def change(run: RunFolder) -> None:
        run.path(name).write_text("")
        renew_digests(run)

    return change


add_lie("publishers_counted_nothing", _empty(f"raw/{PUBLISHERS}/stats.jsonl"), "about any count")

add_lie("subscribers_counted_nothing", _empty(f"raw/{SUBSCRIBERS}/stats.jsonl"), "about any count")


def _lines_of(name: str, change: Callable[[list[dict[str, Any]]], object]) -> Change:
    def both(run: RunFolder) -> None:
        with run.lines(name) as rows:
            change(rows)
        renew_digests(run)

    return both


@register_lie("and raw/local1/load-pub disagree on clients")
def the_sessions_are_in_the_file_of_the_other_process(run: RunFolder) -> None:
    paths = [run.path(f"raw/{name}/sessions.jsonl") for name in (PUBLISHERS, SUBSCRIBERS)]
    contents = [path.read_text() for path in paths]
    for path, content in zip(paths, reversed(contents), strict=True):
        path.write_text(content)
    renew_digests(run)


def _shift_comparison(by_ns: int) -> Callable[[list[dict[str, Any]]], None]:
    def change(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            row["t_ns"] += by_ns

    return change


for _name, _by_ns in (("after_the_load", 60 * SECOND), ("before_the_run", -60 * SECOND)):
    add_lie(
        f"clocks_were_compared_{_name}",
        _lines_of("clock.jsonl", _shift_comparison(_by_ns)),
        "clock.jsonl and manifest.json disagree on the time of",
    )

add_lie(
    "a_restarted_broker_never_began_the_run",
    _lines_of(
        "raw/local2/c2/events.jsonl",
        lambda rows: rows.remove([row for row in rows if row["event"] == "run_begun"][-1]),
    ),
    "no line about run_begun before",
)

add_lie(
    "a_restarted_broker_never_ended_the_run",
    _lines_of("raw/local2/c2/events.jsonl", lambda rows: rows.pop()),
    "no line about run_ended",
)

add_lie(
    "a_killed_broker_never_began_the_run",
    _lines_of("raw/local2/c2/events.jsonl", lambda rows: rows.pop(0)),
    "no line about run_begun before",
)


@register_lie("has no line about guarantee")
def one_load_generator_repeats_no_guarantee(run: RunFolder) -> None:
    guarantee = tomllib.loads(run.path("spec/workload.toml").read_text())["guarantee"]
    with run.document(f"raw/{SUBSCRIBERS}/setting.json") as setting:
        setting["guarantee"] = guarantee
    renew_digests(run)


@register_lie("has no line about parameters")
def one_broker_repeats_no_parameters(run: RunFolder) -> None:
    parameters = json.loads(run.path("manifest.json").read_text())["parameters"]
    for name in ("local1/c1", "local2/c2"):
        with run.lines(f"raw/{name}/events.jsonl") as rows:
            for row in rows:
                if row["event"] == "run_begun":
                    row["parameters"] = parameters
    renew_digests(run)


# --- Counts that do not add up -------------------------------------------------------------------


def _statistics(process: str, change: Callable[[list[dict[str, Any]]], None]) -> Change:
    def both(run: RunFolder) -> None:
        with run.lines(f"raw/{process}/stats.jsonl") as rows:
            change(rows)

    return both


def _each(**values: Any) -> Callable[[list[dict[str, Any]]], None]:
    def change(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            row |= values

    return change


def _acknowledge_late(rows: list[dict[str, Any]]) -> None:
    for row in rows[:-1]:
        row["open"] += row["acknowledged"]
        row["acknowledged"] = 0


for _name, _change, _says in (
    ("some_were_always_open", _each(open=5), "disagree on open at"),
    ("none_was_acknowledged_for_long", _acknowledge_late, "disagree on acknowledged up to"),
    ("publishers_had_no_credit", _each(blocked_us=10**7), "disagree on blocked_us"),
    ("publishers_were_on_time", _each(late_p99_us=0, late_max_us=0), "disagree on late_max_us"),
    ("most_were_later_than_all", _each(late_p99_us=10**5), "disagree on late_p99_us"),
    ("a_second_was_too_late", lambda rows: rows[2].update(saturated=True), "on saturated at"),
):
    add_lie(f"by_statistics_{_name}", _statistics(PUBLISHERS, _change), _says)


@register_lie("deliveries.rec and spec/topology.toml disagree on deliveries given again to")
def a_delivery_was_given_again_by_a_protocol_that_never_does(run: RunFolder) -> None:
    with run.records(SUBSCRIBERS, "deliveries") as rows:
        rows.all["kind"][5] = 4


def _lane(**steps: int) -> Change:
    def change(run: RunFolder) -> None:
        with run.document(f"raw/{SUBSCRIBERS}/online.json") as online:
            for name, step in steps.items():
                online["lanes"][0][name] += step
                online["totals"][name] += step
            totals = dict(online["totals"])
        journal_change(lambda manifest: manifest["headline"].update(online=totals))(run)

    return change


add_lie("the_online_checker_was_unsure", _lane(unsure=1), "disagree on unsure of")

add_lie("the_online_checker_saw_a_notice", _lane(withheld=1), "disagree on withheld of")

add_lie("the_online_checker_owed_less", _lane(owed=-1, delivered=-1), "disagree on delivered of")


@register_lie("disagree on the end: 'a traceback'")
def a_process_printed_a_traceback(run: RunFolder) -> None:
    run.path("raw/local1/c1/stderr.log").write_text("Traceback (most recent call last):\n  …\n")


@register_lie("disagree on drain.ended_by: 'silence'")
def a_drain_ended_in_silence_that_waited_for_nothing(run: RunFolder) -> None:
    journal_change(lambda manifest: manifest["drain"].update(ended_by="silence"))(run)


@register_lie("disagree on length of measure")
def the_measurement_was_a_little_longer(run: RunFolder) -> None:
    def change(manifest: dict[str, Any]) -> None:
        for phase, key in (("measure", "t1_ns"), ("drain", "t0_ns")):
            next(p for p in manifest["phases"] if p["phase"] == phase)[key] += 500_000

    journal_change(change)(run)
    with run.lines("log.jsonl") as rows:
        next(row for row in rows if row.get("phase") == "drain")["at_ns"] += 500_000


@register_lie("how measure ended")
def the_measurement_ended_by_evidence(run: RunFolder) -> None:
    def change(manifest: dict[str, Any]) -> None:
        next(p for p in manifest["phases"] if p["phase"] == "measure")["how"] = "evidence"

    journal_change(change)(run)
