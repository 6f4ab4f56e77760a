"""Lies that the ends of processes contradict, with renewed digests."""

from collections.abc import Callable
from typing import Any

from tests.helpers.false_witnesses.lies import (
    PUBLISHERS,
    SECOND,
    SUBSCRIBERS,
    Change,
    add_lie,
    clocks,
    events_of,
    journal_change,
    register_lie,
    renew_digests,
)
from tests.helpers.forged_folders import RunFolder


def _renew(change: Change) -> Change:
    """Return a change that also updates the digests of the changed files in the journal."""

    def both(run: RunFolder) -> None:
        change(run)
        renew_digests(run)

    return both


def _find_subscriptions(run: RunFolder) -> None:
    with run.lines(f"raw/{SUBSCRIBERS}/subscriptions.jsonl") as rows:
        for row in rows:
            row["t_accepted_ns"] -= SECOND // 100


def _reserve(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "intents") as rows:
        rows.all["last"] += 5


def _without_file(name: str) -> Change:
    return lambda run: run.path(name).unlink()


def _about(what: str) -> Callable[[dict[str, Any]], bool]:
    return lambda row: row["what"] != what


def _journal_without(keeps: Callable[[dict[str, Any]], bool]) -> Change:
    def change(run: RunFolder) -> None:
        with run.lines("log.jsonl") as rows:
            rows[:] = [row for row in rows if keeps(row)]

    return change


def _use_more(run: RunFolder) -> None:
    with run.document(f"raw/{PUBLISHERS}/exit.json") as told:
        told["usage"]["user_s"] += 900


def _later(by_ns: int) -> Change:
    """Return a change that delays all receipts, in records alone."""

    def change(run: RunFolder) -> None:
        with run.records(SUBSCRIBERS, "deliveries") as rows:
            rows.all["received_ns"] += by_ns

    return change


def _cheap(run: RunFolder) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["headline"]["broker_cpu_us_per_message_mean"] *= 0.75

    journal_change(change)(run)


def _read_less(run: RunFolder) -> None:
    """Lower the processor time in the journal and the headline, but not at brokers."""
    with run.lines("log.jsonl") as rows:
        for row in rows:
            if row.get("stage") == "ended" and row["what"] == "processors":
                row["seconds"]["c1"] -= 0.1
                seconds = row["seconds"]
            elif row["what"] == "processors":
                before = row["seconds"]

    def change(manifest: dict[str, Any]) -> None:
        headline = manifest["headline"]
        used = [seconds[name] - before[name] for name in seconds]
        phase = next(each for each in manifest["phases"] if each["phase"] == "measure")
        length_s = (phase["t1_ns"] - phase["t0_ns"]) / SECOND
        mean = sum(used) / len(used)
        headline["broker_cpu_us_per_message_mean"] = mean * 1e6 / headline["delivered"]
        headline["broker_core_share_mean"] = mean / length_s

    journal_change(change)(run)


def _add_one(process: str, key: str) -> Change:
    """Return a change that adds one to a counter in a broker's statistics and the headline."""

    def change(run: RunFolder) -> None:
        with run.lines(f"raw/{process}/stats.jsonl") as rows:
            for row in rows:
                row[key] += 1
        journal_change(_more(key))(run)

    return change


def _more(key: str) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        if key in manifest["headline"]:
            manifest["headline"][key] += 1

    return change


for _name, _change, _says in (
    ("a_subscription_started_earlier", _find_subscriptions, "digest of the closed file"),
    ("more_numbers_were_reserved", _reserve, "digest of the closed file"),
    ("a_load_generator_used_more", _use_more, "exit.json and log.jsonl disagree on the digest of"),
    ("an_output_is_gone", _without_file("raw/local1/c1/stderr.log"), "digest of the collected"),
    ("the_clock_was_compared_longer", clocks(n=31), "clock.jsonl and log.jsonl disagree on the"),
    ("no_process_closed_its_files", _journal_without(_about("closed")), "line about the files of"),
    ("no_files_were_collected", _journal_without(_about("collected")), "the collected files"),
    ("no_processors_were_read", _journal_without(_about("processors")), "about processor times"),
    ("all_receipts_are_later", _renew(_later(SECOND // 5)), "disagree on delivered up to"),
    ("all_receipts_are_earlier", _renew(_later(-SECOND // 5)), "disagree on delivered up to"),
    ("messages_cost_less", _cheap, "headline.broker_cpu_us_per_message_mean"),
    ("a_broker_used_less", _read_less, "disagree on processor time of c1"),
    ("a_broker_received_more", _renew(_add_one("local2/c2", "publications_received")),
     "disagree on the last publications_received"),
    ("a_broker_forwarded_more", _renew(_add_one("local1/c1", "publications_forwarded")),
     "disagree on the last publications_forwarded"),
    ("more_was_sent_again", _renew(_add_one("local1/c1", "resent_publications")),
     "disagree on the last resent_publications"),
    ("more_arrived_twice", _renew(_add_one("local3/c3", "duplicates_received")),
     "disagree on the last duplicates_received"),
    ("the_drain_was_fixed", journal_change(lambda m: m["phases"][-1].update(how="fixed")),
     "how drain ended"),
):  # fmt: skip
    add_lie(f"by_the_ends_{_name}", _change, _says)


@register_lie("has no line about the last counters")
def a_broker_ended_without_its_counters(run: RunFolder) -> None:
    with run.lines(events_of(run, "c1")) as rows:
        next(row for row in rows if row["event"] == "run_ended").pop("counters")
    renew_digests(run)
