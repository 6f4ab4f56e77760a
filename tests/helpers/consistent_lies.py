"""Forged runs: a lie changes one family of files and renews every figure and digest.

A family is the files of one author: the subscribers' or publishers' load generator, one broker, or
the controller. A lie of `LIES` changes all files of the family. `settle` then renews the figures of
the manifest that are computed from records, the digests of the journal, and the seal. Only the
files of another author can contradict such a lie.
"""

import json
import tarfile
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.run.run_directory import specification_digest
from brokerd.protocols.registry import read_topology
from results.reference.history_reader import count_rows
from results.tables.seals import seal
from tests.helpers.false_witnesses import journal_change, renew_digests
from tests.helpers.forged_folders import RunFolder

PUBLISHERS: Final = "local1/load-pub"
SUBSCRIBERS: Final = "local1/load-sub"
SECOND: Final = 10**9
_MS: Final = 10**6

Change = Callable[[RunFolder], bool | None]
"""Returns False if the lie does not apply to a run."""


@dataclass(frozen=True)
class ConsistentLie:
    """One lie.

    Attributes:
        family: the author of the changed files.
        says: a piece of the doubt that must name the lie; "" if no file can contradict the lie.
        trust: a piece of the line of `on_trust` that covers a lie without a doubt.
    """

    name: str
    family: str
    change: Change
    says: str = ""
    trust: str = ""


LIES: dict[str, ConsistentLie] = {}


def _add(name: str, family: str, change: Change, says: str = "", trust: str = "") -> None:
    assert name not in LIES, name
    LIES[name] = ConsistentLie(name, family, change, says, trust)


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


def tell(folder: Path, lie: ConsistentLie) -> bool:
    """Apply a lie to a run folder; return False if the lie does not apply to the run."""
    run = RunFolder(folder)
    if lie.change(run) is False:
        return False
    settle(run)
    return True


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
    _renew_costs(run)
    renew_digests(run)
    seal(run.folder)


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


def _folder_of(run: RunFolder, broker: str) -> str:
    return next(run.folder.glob(f"raw/*/{broker}")).relative_to(run.folder).as_posix()


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


# --- Brokers --------------------------------------------------------------------------------


def _count(broker: str, counter: str, by: Callable[[int], int]) -> Change:
    """Return a change of a broker's counter in all lines from the first nonzero count."""

    def change(run: RunFolder) -> bool | None:
        changed = False
        with run.lines(f"{_folder_of(run, broker)}/stats.jsonl") as rows:
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
        trust="counters of brokers",
    )


def _cheap(run: RunFolder) -> None:
    for broker in ("c1", "c2", "c3"):
        with run.lines(f"{_folder_of(run, broker)}/stats.jsonl") as rows:
            for row in rows:
                row["cpu_s"] /= 3


_add("brokers_needed_a_third_of_the_processor", "brokers", _cheap, says="processor time")


def _hide_broker_session(broker: str) -> Change:
    """Return a change that removes the lost session of a broker with another broker."""

    def change(run: RunFolder) -> bool | None:
        folder = _folder_of(run, broker)
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
    with run.lines(f"{_folder_of(run, 'c3')}/events.jsonl") as rows:
        n = len(rows)
        rows[:] = [row for row in rows if row["event"] != "retransmission_requested"]
        return None if len(rows) < n else False


_add("c3_requested_nothing_again", "brokers", _hide_requests, says="retransmission requests to c2")


def _release(run: RunFolder) -> bool | None:
    """Double the released positions of a second of c1."""
    with run.lines(f"{_folder_of(run, 'c1')}/stats.jsonl") as rows:
        names = [name for name in rows[2] if name.startswith("released_us.") and rows[2][name]]
        rows[2] |= {name: 2 * rows[2][name] for name in names}
        return None if names else False


_add("c1_released_what_is_not_published", "brokers", _release, says="restart by released_us")


def _hide_client_session(run: RunFolder) -> bool | None:
    """Remove a lost session with a subscriber from the records of its broker."""
    folder = _folder_of(run, "c3")
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


# --- The controller -------------------------------------------------------------------------


def _manifest(**values: Any) -> Change:
    def change(run: RunFolder) -> None:
        journal_change(lambda manifest: manifest.update(values))(run)

    return change


def _headline(**values: Any) -> Change:
    def change(run: RunFolder) -> None:
        journal_change(lambda manifest: manifest["headline"].update(values))(run)

    return change


def _specify(name: str, old: str, new: str) -> Change:
    """Return a change of the specification, with the digest in all files."""

    def change(run: RunFolder) -> bool | None:
        if old not in run.path(name).read_text():
            return False
        run.replace(name, old, new)
        renew_specification(run)
        return None

    return change


def renew_specification(run: RunFolder) -> None:
    digest = specification_digest(run.path("spec"))
    journal_change(lambda manifest: manifest.update(specification_digest=digest))(run)
    with run.lines("log.jsonl") as rows:
        next(row for row in rows if row["what"] == "specification")["digest"] = digest
    for process in (PUBLISHERS, SUBSCRIBERS):
        with run.document(f"raw/{process}/setting.json") as setting:
            setting["specification_digest"] = digest


def _parameters(name: str, value: Any) -> Change:
    """Return a change of a protocol parameter, with the digest of the topology in all files."""

    def change(run: RunFolder) -> bool | None:
        manifest = json.loads(run.path("manifest.json").read_text())
        parameters = manifest["parameters"]
        if name not in parameters or parameters[name] == value:
            return False
        if name == "delta":
            run.replace("spec/topology.toml", "delta = 1", f"delta = {value}")
        parameters[name] = value
        topology = read_topology(tomllib.loads(run.path("spec/topology.toml").read_text()), "")
        digest = topology.digest(manifest["protocol"], parameters)
        journal_change(
            lambda manifest: manifest.update(parameters=parameters, topology_digest=digest)
        )(run)
        for process in (PUBLISHERS, SUBSCRIBERS):
            with run.document(f"raw/{process}/setting.json") as setting:
                setting["topology_digest"] = digest
        renew_specification(run)
        return None

    return change


def _payload(run: RunFolder) -> None:
    run.replace("spec/workload.toml", 'size = "40B"', 'size = "4KiB"')
    journal_change(lambda manifest: manifest.update(payload_bytes=4096))(run)
    renew_specification(run)


_add("connections_were_encrypted", "controller", _manifest(transport="TLS"), trust="TLS")
_add(
    "hosts_did_not_wait_for_disks",
    "controller",
    _manifest(without_fsync=["local1"]),
    trust="without_fsync",
)
_add("payloads_were_larger", "controller", _payload, says="corrupted")
for _name, _key, _value in (
    ("delta_was_larger", "delta", 2),
    ("queues_were_shorter", "queue_limit", 5),
    ("the_window_was_smaller", "client_window", 99),
    ("subscribers_could_be_away_shorter", "client_linger_ns", SECOND),
    ("fewer_subscriptions_were_allowed", "client_subscriptions", 5),
    ("there_was_one_stream_per_broker", "pubends", 1),
    ("attempts_were_rarer", "retry_limit_ns", 9 * SECOND),
):
    _add(_name, "controller", _parameters(_key, _value), says=f"parameter {_key}")
for _name, _old, _new, _says in (
    ("less_was_guaranteed", '"exactly-once"', '"at-least-once"', "guarantee"),
    ("gaps_were_permitted", "gapless = true", "gapless = false", "guarantee"),
    ("no_order_was_guaranteed", 'order = "publisher"', 'order = "none"', "guarantee"),
    ("fewer_deliveries_were_required", "pair_min = 10", "pair_min = 1", "bars"),
    ("the_run_was_to_be_calm", "calm = false", "calm = true", "calm"),
):
    _add(_name, "controller", _specify("spec/workload.toml", _old, _new), says=f"on {_says}")
for _name, _old, _new in (
    ("publishers_were_to_be_late", "< 1s", "< 2s"),
    ("the_drain_was_to_last_longer", 'drain = "20s"', 'drain = "30s"'),
):
    _add(_name, "controller", _specify("spec/workload.toml", _old, _new), trust="specification")
_add(
    "the_rate_was_lower",
    "controller",
    _specify("spec/workload.toml", '"10/s"', '"9/s"'),
    says="intended times",
)
_add("machines_never_waited", "controller", _manifest(waited_share={}), trust="processor")
_add("brokers_were_ready_sooner", "controller", _headline(ready_after_us=1000.0), trust="ready")
_add(
    "the_tool_was_another",
    "controller",
    _manifest(tool_version="9.9.9", git_commit="0" * 40),
    trust="versions",
)
_add(
    "the_machine_was_another",
    "controller",
    _manifest(cpu="another", cores=64),
    trust="description of machines",
)
_add("disks_held_less", "controller", _manifest(disk_bytes={"c1": 1}), trust="disks")
_add(
    "brokers_yielded_the_processor", "controller", _manifest(broker_nice={"c1": 5}), trust="priorit"
)


def _took(run: RunFolder) -> None:
    journal_change(lambda manifest: manifest["drain"].update(took_s=0.001))(run)


_add("the_drain_was_shorter", "controller", _took, trust="length of the drain")


def _absorb(by: int) -> Change:
    def change(run: RunFolder) -> bool | None:
        if not run.path("faults/faults.jsonl").is_file():
            return False
        changed = False
        for name in ("faults/log.jsonl", "log.jsonl"):
            with run.lines(name) as rows:
                for row in rows:
                    of = row.get("evidence") or {}
                    if of.get("absorbed_publications") is not None:
                        of["absorbed_publications"] += by
                        changed = True
        with run.lines("faults/faults.jsonl") as rows:
            for row in rows:
                if row.get("absorbed_msgs") is not None:
                    row["absorbed_msgs"] += by
                    evidence = json.loads(row["evidence"])
                    if "absorbed_publications" in evidence:
                        evidence["absorbed_publications"] += by
                    row["evidence"] = json.dumps(evidence)
        return changed

    return change


_add("more_was_absorbed", "controller", _absorb(5), says="absorbed")


def _move_fault(step: str, by_ns: int) -> Change:
    """Return a change that moves all stages of a fault but the planned time, in all fault files."""

    def change(run: RunFolder) -> bool | None:
        if not run.path("faults/faults.jsonl").is_file():
            return False
        with run.lines("faults/faults.jsonl") as rows:
            for row in rows:
                if row["step"] == step:
                    for key in row:
                        if key.startswith("t_") and key != "t_planned_ns" and row[key]:
                            row[key] += by_ns
                    for stamps in row["host_stamps"].values():
                        for host in stamps:
                            stamps[host] += by_ns
        for name in ("faults/log.jsonl", "log.jsonl"):
            with run.lines(name) as rows:
                for row in rows:
                    if row.get("step") == step and row.get("stage") not in ("planned", "learned"):
                        row["t_ns"] += by_ns
                        of = (row.get("evidence") or {}).get("host_stamps") or {}
                        for stamps in (row.get("host_stamps") or {}, of):
                            for host, at_ns in stamps.items():
                                if isinstance(at_ns, int):
                                    stamps[host] = at_ns + by_ns
        return None

    return change


for _step, _says in (
    ("freeze-c3", "planned time"), ("away", "disagree"), ("absorb-c2", "disagree"),
):  # fmt: skip
    _add(f"{_step}_was_sooner", "controller", _move_fault(_step, -300 * _MS), says=_says)
    _add(f"{_step}_was_later", "controller", _move_fault(_step, 300 * _MS), says=_says)
_add("positions_were_exchanged", "subscribers", _exchange_positions, says="place")
