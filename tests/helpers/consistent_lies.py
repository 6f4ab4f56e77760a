"""Forged runs: a lie changes one family of files and renews every figure and digest.

A family is the files of one author: the subscribers' or publishers' load generator, one broker, or
the controller. A lie of `LIES` changes all files of the family. `settle` then renews the figures of
the manifest that are computed from records, the digests of the journal, and the seal. Only the
files of another author can contradict such a lie.
"""

import json
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, Final

import numpy as np

from tests.helpers import broker_lies, controller_lies
from tests.helpers.false_witnesses import journal_change
from tests.helpers.forged_folders import RunFolder
from tests.helpers.lie_tables import Change, ConsistentLie, add_lie
from tests.helpers.settled_runs import PUBLISHERS, SUBSCRIBERS

_MS: Final = 10**6
LIES: Final[dict[str, ConsistentLie]] = {**broker_lies.LIES, **controller_lies.LIES}
_add = partial(add_lie, LIES)


# --- Load generators of subscribers ---------------------------------------------------------


def _recount(run: RunFolder, process: str) -> None:
    """Renew the counts of a load generator's statistics."""
    folder = run.path(f"raw/{process}")
    layouts = {"sent": "publications", "delivered": "deliveries", "acknowledged": "acks"}
    with run.lines(f"raw/{process}/stats.jsonl") as lines:
        for column, layout in layouts.items():
            if not (folder / f"{layout}.rec").is_file():
                continue
            with run.records(process, layout) as rows:
                found = rows.all
            if layout == "deliveries":
                found = found[(found["layer"] == 1) & (found["kind"] != 3)]
                stamps, sizes = found["received_ns"], np.ones(len(found), int)
            elif layout == "publications":
                stamps, sizes = found["sent_ns"], np.ones(len(found), int)
            else:
                found = found[found["outcome"] == 1]
                stamps, sizes = found["acked_ns"], found["last"] - found["first"] + 1
            for line in lines:
                before = line[column]
                line[column] = int(sizes[stamps <= line["t_ns"]].sum())
                if column == "acknowledged":
                    line["open"] += before - line[column]


def _receive(change: Callable[[Any, Any], Any]) -> Change:
    """Return a change of receive times, computed from receive and send times."""

    def both(run: RunFolder) -> None:
        sent: dict[tuple[str, int], int] = {}
        with run.records(PUBLISHERS, "publications") as rows:
            names = rows.sidecar["tables"]["publishers"]
            for row in rows.all:
                sent[names[row["publisher"]], int(row["sequence"])] = int(row["sent_ns"])
        with run.records(SUBSCRIBERS, "deliveries") as rows:
            names = rows.sidecar["tables"]["publishers"]
            since = np.array(
                [sent[names[row["publisher"]], int(row["sequence"])] for row in rows.all], "<i8"
            )
            moved = change(rows.all["received_ns"], since)
            rows.all["received_ns"] = np.maximum.accumulate(np.maximum(moved, since + 200_000))
            times = rows.all["received_ns"].copy()
        if run.path(f"raw/{SUBSCRIBERS}/positions.rec").is_file():
            with run.records(SUBSCRIBERS, "positions") as rows:
                if len(rows.all) == len(times):
                    rows.all["received_ns"] = times
        _recount(run, SUBSCRIBERS)

    return both


_add(
    "receipts_were_twice_as_fast",
    "subscribers",
    _receive(lambda at, sent: sent + (at - sent) // 2),
    trust="exact times of",
)
_add(
    "receipts_were_10ms_earlier",
    "subscribers",
    _receive(lambda at, sent: at - 10 * _MS),
    trust="exact times of",
)
_add(
    "receipts_were_at_once",
    "subscribers",
    _receive(lambda at, sent: sent + _MS),
    trust="exact times of",
)


def _lose(run: RunFolder) -> bool | None:
    """Invent the lost deliveries."""
    with run.records(PUBLISHERS, "publications") as rows:
        sets = rows.sidecar["tables"]["attribute_sets"]
        names = rows.sidecar["tables"]["publishers"]
        sent = [
            (
                names[row["publisher"]],
                int(row["sequence"]),
                int(row["sent_ns"]),
                sets[row["attribute_set"]],
            )
            for row in rows.all
        ]
    with run.records(SUBSCRIBERS, "deliveries") as rows:
        subscriptions = rows.sidecar["tables"]["subscriptions"]
        sources = rows.sidecar["tables"]["publishers"]
        digests = {
            (int(row["publisher"]), int(row["sequence"])): int(row["digest"]) for row in rows.all
        }
        there = {
            (int(row["subscription"]), int(row["publisher"]), int(row["sequence"]))
            for row in rows.all
        }
        added = []
        for source, number, sent_ns, attributes in sent:
            for place, subscription in enumerate(subscriptions):
                is_owed = "1/1" in subscription or attributes.get("price", 0) <= 60
                key = place, sources.index(source), number
                if is_owed and key not in there and "fence" not in attributes:
                    row = rows.all[:1].copy()
                    row["subscription"], row["publisher"], row["sequence"] = key
                    row["received_ns"], row["kind"], row["layer"] = sent_ns + 2 * _MS, 0, 1
                    row["digest"] = digests.get(key[1:], 0)
                    added.append(row)
        if not added:
            return False
        every = np.concatenate([rows.all, *added])
        rows.all = every[np.argsort(every["received_ns"], kind="stable")]
        lanes: dict[tuple[str, str], int] = {}
        for row in added:
            lane = subscriptions[int(row["subscription"][0])], sources[int(row["publisher"][0])]
            lanes[lane] = lanes.get(lane, 0) + 1
    with run.document(f"raw/{SUBSCRIBERS}/online.json") as online:
        for lane in online["lanes"]:
            n = lanes.get((lane["subscription"], lane["publisher"]), 0)
            lane["deliveries"] += n
            lane["delivered"] += n
            lane["missing"] -= n
            for key in ("deliveries", "delivered"):
                online["totals"][key] += n
            online["totals"]["missing"] -= n
    _recount(run, SUBSCRIBERS)
    return None


_add("losses_were_delivered", "subscribers", _lose, says="publications delivered by c3")


def _hide_session(run: RunFolder) -> bool | None:
    with run.lines(f"raw/{SUBSCRIBERS}/sessions.jsonl") as rows:
        own = [n for n, row in enumerate(rows) if row["client"] == "c3-sub-1"]
        if len(own) < 4:
            return False
        rows[:] = [row for n, row in enumerate(rows) if n not in own[1:3]]
        for row in rows:
            if row["client"] == "c3-sub-1" and row["session"] > 1:
                row["session"] -= 1
    return None


_add("a_subscriber_never_lost_its_session", "subscribers", _hide_session, says="disagree")


def _accept(run: RunFolder) -> None:
    with run.lines(f"raw/{SUBSCRIBERS}/subscriptions.jsonl") as rows:
        for row in rows:
            row["t_accepted_ns"] -= 2 * _MS


_add("subscriptions_were_accepted_sooner", "subscribers", _accept, trust="exact times of")


def _move_positions(run: RunFolder) -> bool | None:
    if not run.path(f"raw/{SUBSCRIBERS}/positions.rec").is_file():
        return False
    sums: dict[str, list[int]] = {}
    with run.records(SUBSCRIBERS, "positions") as rows:
        rows.all["position"] += 1000
        names = rows.sidecar["tables"]["streams"]
        for row in rows.all:
            of = sums.setdefault(names[row["stream"]], [0, 0])
            of[0] += 1
            of[1] += int(row["position"])
    with run.document(f"raw/{SUBSCRIBERS}/online.json") as online:
        online["streams"] = sums
    return None


_add("positions_were_others", "subscribers", _move_positions, trust="places in streams")


def _exchange_positions(run: RunFolder) -> bool | None:
    """Exchange two places of different sources that one subscription alone received."""
    if not run.path(f"raw/{SUBSCRIBERS}/positions.rec").is_file():
        return False
    with run.records(SUBSCRIBERS, "deliveries") as rows:
        own = rows.all.copy()
    with run.records(SUBSCRIBERS, "positions") as rows:
        found = rows.all
        times = {place: (found["position"] == place).sum() for place in {*found["position"]}}
        alone = [n for n, row in enumerate(found) if times[row["position"]] == 1]
        for one, other in pairwise(alone):
            a, b = (own[found[n]["row"]] for n in (one, other))
            is_same = found[one]["stream"] == found[other]["stream"]
            if is_same and a["publisher"] != b["publisher"]:
                found["position"][[one, other]] = found["position"][[other, one]]
                return None
    return False


def _each_line(process: str, **changes: Callable[[Any], Any]) -> Change:
    def change(run: RunFolder) -> None:
        with run.lines(f"raw/{process}/stats.jsonl") as rows:
            for row in rows:
                for name, of in changes.items():
                    row[name] = of(row[name])

    return change


_add(
    "subscribers_needed_half_the_processor",
    "subscribers",
    _each_line(SUBSCRIBERS, cpu_ratio=lambda share: share / 2),
    trust="processor",
)
_add(
    "subscribers_needed_ten_times_the_processor",
    "subscribers",
    _each_line(SUBSCRIBERS, cpu_ratio=lambda share: share * 10),
    says="exit.json",
)
_add(
    "subscribers_had_more_memory",
    "subscribers",
    _each_line(SUBSCRIBERS, rss_bytes=lambda size: size * 2),
    says="exit.json",
)
_add(
    "subscribers_had_less_memory",
    "subscribers",
    _each_line(SUBSCRIBERS, rss_bytes=lambda size: size // 2),
    trust="memory",
)


# --- Load generators of publishers ----------------------------------------------------------


def _send(by: Callable[[Any, Any], Any]) -> Change:
    """Return a change of send times, computed from send times and intended times."""

    def change(run: RunFolder) -> None:
        with run.records(PUBLISHERS, "publications") as rows:
            rows.all["sent_ns"] = np.maximum.accumulate(
                by(rows.all["sent_ns"], rows.all["intended_ns"])
            )
            fence = len(rows.sidecar["tables"]["attribute_sets"]) - 1
            of_data = rows.all[rows.all["attribute_set"] != fence]
            late = np.maximum(0, of_data["sent_ns"] - of_data["intended_ns"])
            sent, lateness = of_data["sent_ns"].copy(), late.copy()
        _recount(run, PUBLISHERS)
        with run.lines(f"raw/{PUBLISHERS}/stats.jsonl") as lines:
            before_ns = 0
            for line in lines:
                own = lateness[(sent > before_ns) & (sent <= line["t_ns"])]
                before_ns = line["t_ns"]
                line["late_max_us"] = int(own.max() // 1000) if len(own) else 0
                line["late_p99_us"] = line["late_max_us"]
                line["blocked_us"] = 0

    return change


def _on_time(run: RunFolder) -> None:
    _send(lambda sent, due: np.where(due > 0, np.minimum(sent, due + 50_000), sent))(run)

    def renew(manifest: dict[str, Any]) -> None:
        with run.lines(f"raw/{PUBLISHERS}/stats.jsonl") as lines:
            most = max(line["late_max_us"] for line in lines)
        manifest["headline"]["lateness_p99_us"] = float(most)

    journal_change(renew)(run)


_add("publications_were_sent_on_time", "publishers", _on_time, trust="exact times of")


def _answer(by: Callable[[Any, Any], Any]) -> Change:
    def change(run: RunFolder) -> None:
        with run.records(PUBLISHERS, "publications") as rows:
            sent = {
                (int(row["publisher"]), int(row["sequence"])): int(row["sent_ns"])
                for row in rows.all
            }
        with run.records(PUBLISHERS, "acks") as rows:
            since = np.array(
                [sent[int(row["publisher"]), int(row["last"])] for row in rows.all], "<i8"
            )
            moved = np.maximum(by(rows.all["acked_ns"], since), since + 100_000)
            rows.all["acked_ns"] = np.maximum.accumulate(moved)
        _recount(run, PUBLISHERS)

    return change


_add(
    "acknowledgements_were_twice_as_fast",
    "publishers",
    _answer(lambda at, sent: sent + (at - sent) // 2),
    trust="exact times of",
)
_add(
    "acknowledgements_were_at_once",
    "publishers",
    _answer(lambda at, sent: sent + _MS),
    trust="exact times of",
)


def _reject(run: RunFolder) -> bool | None:
    """Log the lost publications as rejected."""
    online = json.loads(run.path(f"raw/{SUBSCRIBERS}/online.json").read_text())
    if not online["totals"]["missing"]:
        return False
    with run.records(SUBSCRIBERS, "deliveries") as rows:
        names = rows.sidecar["tables"]["publishers"]
        first = rows.sidecar["tables"]["subscriptions"].index("c3-sub-1/1")
        there = {
            (names[row["publisher"]], int(row["sequence"]))
            for row in rows.all
            if row["subscription"] == first
        }
    n = 0
    with run.records(PUBLISHERS, "acks") as rows:
        names = rows.sidecar["tables"]["publishers"]
        for row in rows.all:
            if (names[row["publisher"]], int(row["first"])) not in there:
                row["outcome"] = 2
                n += 1
    _recount(run, PUBLISHERS)
    with run.lines(f"raw/{PUBLISHERS}/stats.jsonl") as lines:
        for line in lines:
            line["rejected"] = n if line is lines[-1] else 0
    return None


_add("losses_were_rejected", "publishers", _reject, says="not acknowledged and not delivered")
_add(
    "publishers_needed_half_the_processor",
    "publishers",
    _each_line(PUBLISHERS, cpu_ratio=lambda share: share / 2),
    trust="processor",
)
_add(
    "publishers_needed_ten_times_the_processor",
    "publishers",
    _each_line(PUBLISHERS, cpu_ratio=lambda share: share * 10),
    says="exit.json",
)


_add("positions_were_exchanged", "subscribers", _exchange_positions, says="place")
