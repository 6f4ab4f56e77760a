"""Lies in all files of one broker: counters, statistics and events."""

import json
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, Final

from tests.helpers.false_witnesses import journal_change
from tests.helpers.forged_folders import RunFolder
from tests.helpers.lie_tables import Change, ConsistentLie, add_lie
from tests.helpers.settled_runs import folder_of

LIES: Final[dict[str, ConsistentLie]] = {}
_add = partial(add_lie, LIES)


def _count(broker: str, counter: str, by: Callable[[int], int]) -> Change:
    """Return a change of a broker's counter in all lines from the first nonzero count."""

    def change(run: RunFolder) -> bool | None:
        changed = False
        with run.lines(f"{folder_of(run, broker)}/stats.jsonl") as rows:
            for row in rows:
                if row.get(counter):
                    value = max(0, by(row[counter]))
                    changed |= value != row[counter]
                    row[counter] = value
        if not changed:
            return False
        _renew_statistics(run)
        return None

    return change


def _renew_statistics(run: RunFolder) -> None:
    """Renew the figures of the headline that are counted from brokers' statistics."""
    lost = resent = again = memory = 0
    for path in sorted(run.folder.glob("raw/*/c*/stats.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        counts = [row["broker_sessions_lost"] for row in rows]
        lost += sum(max(0, b - a) for a, b in pairwise(counts))
        resent += rows[-1].get("resent_publications", 0)
        again += rows[-1].get("duplicates_received", 0)
        memory = max(memory, *(row.get("private_bytes") or 0 for row in rows))

    def renew(manifest: dict[str, Any]) -> None:
        manifest["headline"] |= {
            "sessions_lost": lost, "resent_publications": resent, "duplicates_received": again,
            "broker_private_bytes_max": memory,
        }  # fmt: skip

    journal_change(renew)(run)


for _broker in ("c1", "c2", "c3"):
    for _counter in ("received", "forwarded", "delivered"):
        for _word, _by in (("fewer", -3), ("more", 3)):
            _add(
                f"{_broker}_{_counter}_{_word}",
                "brokers",
                _count(_broker, f"publications_{_counter}", lambda n, by=_by: n + by),
                says="" if _counter == "forwarded" else "disagree on publications",
                trust="counters of brokers",
            )
    _add(
        f"{_broker}_resent_nothing",
        "brokers",
        _count(_broker, "resent_publications", lambda n: 0),
        trust="counters of brokers",
    )
    _add(
        f"{_broker}_received_no_duplicates",
        "brokers",
        _count(_broker, "duplicates_received", lambda n: 0),
        trust="counters of brokers",
    )
    _add(
        f"{_broker}_had_half_the_memory",
        "brokers",
        _count(_broker, "private_bytes", lambda n: n // 2),
        trust="memory",
    )
    _add(
        f"{_broker}_matched_more",
        "brokers",
        _count(_broker, "matching_hits", lambda n: n + 7),
        trust="counters of brokers",
    )
    _add(
        f"{_broker}_asked_more",
        "brokers",
        _count(_broker, "nacks_sent", lambda n: n + 7),
        says="in the run" if _broker == "c3" else "",
        trust="" if _broker == "c3" else "counters of brokers",
    )


def _cheap(run: RunFolder) -> None:
    for broker in ("c1", "c2", "c3"):
        with run.lines(f"{folder_of(run, broker)}/stats.jsonl") as rows:
            for row in rows:
                row["cpu_s"] /= 3


_add("brokers_needed_a_third_of_the_processor", "brokers", _cheap, says="processor time")


def _hide_broker_session(broker: str) -> Change:
    """Return a change that removes the lost session of a broker with another broker."""

    def change(run: RunFolder) -> bool | None:
        folder = folder_of(run, broker)
        hidden: dict[str, list[int]] = {"session_lost": [], "session_established": []}
        with run.lines(f"{folder}/events.jsonl") as rows:
            lost = [row for row in rows if row["event"] == "session_lost" and len(row["peer"]) == 2]
            for row in lost[:1]:
                later = [
                    each for each in rows
                    if each["event"] == "session_established" and each["peer"] == row["peer"]
                    and each["t_ns"] > row["t_ns"]
                ]  # fmt: skip
                if not later:
                    return False
                hidden["session_lost"].append(row["t_ns"])
                hidden["session_established"].append(later[0]["t_ns"])
            rows[:] = [row for row in rows if row["t_ns"] not in hidden.get(row["event"], ())]
        if not lost:
            return False
        with run.lines(f"{folder}/stats.jsonl") as rows:
            for row in rows:
                for event, names in (
                    ("session_lost", ("sessions_lost", "broker_sessions_lost")),
                    ("session_established", ("sessions_established",)),
                ):
                    n = sum(at <= row["t_ns"] for at in hidden[event])
                    for name in names:
                        row[name] = max(0, row[name] - n)
        _renew_statistics(run)
        return None

    return change


for _broker in ("c1", "c2", "c3"):
    _add(
        f"{_broker}_never_lost_a_broker", "brokers", _hide_broker_session(_broker), says="disagree"
    )


def _hide_requests(run: RunFolder) -> bool | None:
    """Remove the retransmission requests of c3."""
    with run.lines(f"{folder_of(run, 'c3')}/events.jsonl") as rows:
        n = len(rows)
        rows[:] = [row for row in rows if row["event"] != "retransmission_requested"]
        return None if len(rows) < n else False


_add("c3_requested_nothing_again", "brokers", _hide_requests, says="retransmission requests to c2")


def _request_last(run: RunFolder) -> bool | None:
    """Insert a retransmission request of c3 just before the end of the run."""
    with run.lines(f"{folder_of(run, 'c3')}/events.jsonl") as rows:
        asked = [row for row in rows if row["event"] == "retransmission_requested"]
        place = next(n for n, row in enumerate(rows) if row["event"] == "run_ended")
        if not asked:
            return False
        rows.insert(place, {**asked[-1], "t_ns": rows[place]["t_ns"] - 1_000_000})
    return None


_add("c3_requested_at_the_end", "brokers", _request_last, says="of c3 in the run")


def _forward(run: RunFolder) -> bool | None:
    """Let messages pass c2 while c2 absorbed everything."""
    counted = 0
    with run.lines(f"{folder_of(run, 'c2')}/events.jsonl") as rows:
        for row in rows:
            if row["event"] == "fault_counted" and row["absorbed_messages"]:
                row["forwarded_since_applied"] = 20
                counted += 1
    return None if counted else False


_add("c2_forwarded_during_an_absorb", "brokers", _forward, says="messages forwarded during")


def _stop_counting(broker: str) -> Change:
    """Return a change that removes two seconds of a broker's statistics."""

    def change(run: RunFolder) -> None:
        with run.lines(f"{folder_of(run, broker)}/stats.jsonl") as rows:
            del rows[3:5]

    return change


for _broker in ("c1", "c2", "c3"):
    _add(
        f"{_broker}_wrote_nothing_for_three_seconds", "brokers", _stop_counting(_broker),
        says="deliveries.rec and acks.rec disagree",
    )  # fmt: skip


def _print(run: RunFolder) -> None:
    """Let c1 print a line."""
    run.path(f"{folder_of(run, 'c1')}/stdout.log").write_text("core dumped\n")


_add("c1_printed_a_line", "brokers", _print, says="printed bytes")


def _deliver_early(run: RunFolder) -> bool | None:
    """Double the delivered positions of a second of c1."""
    with run.lines(f"{folder_of(run, 'c1')}/stats.jsonl") as rows:
        names = [name for name in rows[2] if name.startswith("delivered_us.") and rows[2][name]]
        rows[2] |= {name: 2 * rows[2][name] for name in names}
        return None if names else False


_add(
    "c1_delivered_what_is_not_published", "brokers", _deliver_early, says="restart by delivered_us"
)


def _hide_client_session(run: RunFolder) -> bool | None:
    """Remove a lost session with a subscriber from the records of its broker."""
    folder = folder_of(run, "c3")
    hidden: dict[str, list[int]] = {"session_lost": [], "session_established": []}
    with run.lines(f"{folder}/events.jsonl") as rows:
        own = [
            row for row in rows
            if row["event"] in hidden and str(row.get("peer")).startswith("c3-sub-2")
        ]  # fmt: skip
        if len(own) < 4:
            return False
        for row in own[1:3]:
            hidden[row["event"]].append(row["t_ns"])
        rows[:] = [row for row in rows if row["t_ns"] not in hidden.get(row["event"], ())]
    with run.lines(f"{folder}/stats.jsonl") as rows:
        for row in rows:
            row["sessions_lost"] -= sum(at <= row["t_ns"] for at in hidden["session_lost"])
            row["sessions_established"] -= sum(
                at <= row["t_ns"] for at in hidden["session_established"]
            )
    return None


_add("c3_never_lost_a_client", "brokers", _hide_client_session, says="disagree")
