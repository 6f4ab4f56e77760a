"""A run folder as a history, read row by row with the standard library alone."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from results.reference import busyness, specification
from results.reference.announcements import absences_of, commits_of, gaps_of
from results.reference.broker_events import (
    AcceptedLoss,
    accepted_losses_of,
    find_sent_again,
    retentions_of,
)
from results.reference.contents import Contents, clients_of
from results.reference.fault_log import FaultLog
from results.reference.files import (
    NOTICE,
    STRETCH,
    FileRefusal,
    Records,
    StreamSelection,
    is_sealed,
    read_json,
    read_lines,
    read_records,
    read_toml,
)
from results.reference.history import (
    GAP,
    DeliveryRow,
    History,
    Judgement,
    Key,
    PublicationRow,
    PublisherLog,
    SubscriptionLog,
)
from results.reference.predicates import wants
from results.reference.row_counts import Count
from results.reference.rule import check
from results.reference.stretches import Stretches
from results.reference.times import Clocks, TimeFacts
from results.rules.terms import (
    STREAMS,
    WITHOUT_PROCESSES,
    Fault,
    Guarantee,
    Notice,
    Partition,
    doubt,
)
from results.witnesses import Rows, RunFolder, doubts_of_witnesses
from results.witnesses.online import findings_online
from results.witnesses.promises import promises_of

_APPLICATION = 1


def judge_folder(folder: Path) -> Judgement:
    """Return the verdict on the run in a folder.

    Raises:
        Refused: a file has changed since the run ended.
    """
    return check(read_history(folder))


def read_history(folder: Path) -> History:
    """Return the history of the run in a folder, with the doubts about its files.

    Raises:
        Refused: a file has changed since the run ended.
    """
    try:
        return _Folder(folder).history()
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise FileRefusal(f"{folder} does not hold what a run does: {reason}") from error


def read_streams(folder: Path, sources: Iterable[str], subscriptions: Iterable[str]) -> History:
    """Return the history of whole streams: from some sources to some subscriptions.

    The doubts are not the doubts of the run. Places in streams are left out.

    Raises:
        Refused: a file cannot be read.
    """
    wanted = StreamSelection(frozenset(sources), frozenset(subscriptions))
    return _Folder(folder, wanted).history()


def timeline_of(folder: Path) -> Callable[[int, str], int]:
    """Return the function that turns a stamp of a host into a time since the start of the run.

    Raises:
        Refused: a file cannot be read.
    """
    return _Folder(folder, StreamSelection(frozenset(), frozenset())).to_timeline


def count_rows(folder: Path) -> Rows:
    """Return the counts of all records of a run, as the witnesses get them.

    Raises:
        Refused: a file has changed since the run ended.
    """
    reader = _Folder(folder)
    reader.history()
    rows = reader._rows
    assert rows is not None, folder
    return rows


class _Folder:
    def __init__(self, folder: Path, wanted: StreamSelection | None = None) -> None:
        self.folder = folder
        self.wanted = wanted
        self.doubts: list[str] = []
        if wanted is None and not is_sealed(folder):
            self.doubts.append(doubt("unsealed"))
        self.manifest = read_json(folder / "manifest.json")
        self.workload = read_toml(folder / "spec" / "workload.toml")
        self.topology = read_toml(folder / "spec" / "topology.toml")
        specification.verify(folder, self.workload, self.topology)
        other = folder / "spec" / "overlay.json"
        self.overlay = read_json(other) if other.is_file() else self.topology
        self.run_id = str(self.manifest.get("run_id"))
        self.content = Contents.from_workload(self.workload, self.run_id)
        phases = {
            phase["phase"]: phase
            for phase in self.manifest.get("phases") or ()
            if phase.get("t1_ns") is not None
        }
        for phase in phases.values():
            ends = phase["t0_ns"], phase["t1_ns"]
            if not all(isinstance(end_ns, int) for end_ns in ends):
                raise FileRefusal(f"{folder}: {phase['phase']} was from {ends[0]!r} to {ends[1]!r}")
        origin_ns = self.manifest.get("origin_ns")
        if not isinstance(origin_ns, int):
            self.doubts.append(doubt("not_measured"))
            origin_ns = min((p["t0_ns"] for p in self.manifest.get("phases") or ()), default=0)
        self.origin_ns: int = origin_ns
        measured = phases.get("measure")
        self.measured = None if measured is None else (measured["t0_ns"], measured["t1_ns"])
        self.measured_until_ns = None if measured is None else measured["t1_ns"] - origin_ns
        self.clocks = Clocks(
            str((self.manifest.get("clock") or {}).get("host_id", "")),
            origin_ns + (self.measured_until_ns or 0),
            tuple(read_lines(folder / "clock.jsonl")),
        )
        self.phases = {
            name: (phase["t0_ns"] - origin_ns, phase["t1_ns"] - origin_ns)
            for name, phase in phases.items()
        }
        self._records: list[tuple[str, Records]] = []
        self.host_of: dict[str, str] = {}
        self._publisher_of: dict[str, str] = {}
        for sidecar in sorted(folder.glob("raw/*/*/publications.rec.json")):
            tables = read_json(sidecar).get("tables") or {}
            self._publisher_of |= tables.get("publisher_names") or {}
        self._stretches = Stretches(self.content, self._publisher_of)
        self.promises = promises_of(self.workload, self.topology)
        self.records: dict[tuple[Path, str], Records] = {}

    @property
    def is_cut_short(self) -> bool:
        """True if deliveries were still arriving when the drain ended, or the run before it."""
        if drain := self.manifest.get("drain"):
            return bool(drain.get("ended_by") == "bound")
        return self.manifest.get("state") != "complete"

    @property
    def is_simulated(self) -> bool:
        """True if no brokers could count absorbed publications."""
        return (self.manifest.get("labels") or {}).get("brokers") == "simulated"

    @property
    def brokers_label(self) -> str:
        """The mark of a run without processes of brokers; "" for a run with processes."""
        label = str((self.manifest.get("labels") or {}).get("brokers"))
        return label if label in WITHOUT_PROCESSES else ""

    def history(self) -> History:
        """Return the whole history, with all doubts."""
        self.doubts += self._check_manifest()
        roles = (self.manifest.get("roles") or {}).values()
        load_hosts = sorted({role["host"] for role in roles if role["role"] != "broker"})
        linked = {**self.topology, "links": self.overlay["links"]}
        fault_log = FaultLog(self.folder, linked, self.clocks, self.origin_ns, load_hosts)
        self.doubts += fault_log.doubts(self.is_simulated)
        wiring = self.topology.get("tree") or self.topology.get("parameters") or {}
        publishers, subscriptions, absences = self._read_processes(load_hosts)
        busy = busyness.signs(self.folder, self.manifest, fault_log.faults, self._to_timeline)
        retentions = retentions_of(self.folder, self.clocks, self._to_timeline)
        if "churn" in self.workload and not absences:
            self.doubts.append(doubt("no_churn"))
        if self.wanted is not None:
            publishers = [log for log in publishers if log.source in self.wanted.sources]
            names = self.wanted.subscriptions
            subscriptions = [log for log in subscriptions if log.subscription in names]
        self._miss("publisher", [*self.content.publishers], [log.name for log in publishers])
        wanted = [name for name, _, _ in clients_of(self.workload, "subscribers", "sub")]
        self._miss("subscriber", wanted, [log.subscriber for log in subscriptions])
        return History(
            content=self.content,
            publishers=publishers,
            subscriptions=subscriptions,
            links=[(a, b) for a, b in self.overlay["links"]],
            routes=self._routes(),
            faults=[*fault_log.faults, *absences],
            guarantee=Guarantee(**self.workload.get("guarantee", {})).with_promised_order(
                self.promises
            ),
            calm=self.workload.get("calm", False) is True,
            deliveries_per_pair_min=self.workload.get("bars", {}).get("deliveries_per_pair_min", 0),
            doubts=(
                *self.doubts,
                *self._check_exercise(fault_log),
                *self._check_specification(),
                *self._check_times(),
                *self._check_witnesses(),
            ),
            delta=wiring.get("delta", 1),
            newcomers=tuple(self.manifest.get("joined", ())),
            clock_errors=self._clock_errors(publishers, subscriptions),
            timeline_errors={
                log.source: self.clocks.error_ns(self.host_of[log.source]) for log in publishers
            },
            measured_until_ns=self.measured_until_ns,
            to_be_reached=tuple(self._list_requirements().get("subscribers_on_path", ())),
            promises=replace(
                self.promises,
                losses_from_ns=min((loss.lost_ns for loss in self._accepted_losses), default=None),
                retentions=tuple(sorted(retentions, key=lambda each: each.since_ns)),
            ),
            online=findings_online(
                RunFolder(self.folder, self),
                self._rows,
                has_sent_again=any(log.sent_again for log in publishers),
            ),
            topic=str(self.workload.get("topic") or self.promises.topic),
            placed=self.promises.order in STREAMS and not self.is_simulated,
            busy=tuple(busy),
            was_silent=(self.manifest.get("drain") or {}).get("ended_by", "evidence")
            not in (None, "evidence"),
            seen=self._find_received_elsewhere(publishers),
            brokers=self.brokers_label,
        )

    def _read_processes(
        self, load_hosts: Sequence[str]
    ) -> tuple[list[PublisherLog], list[SubscriptionLog], list[Fault]]:
        """Return publishers, subscriptions, and absences of clients, from all processes."""
        publishers: list[PublisherLog] = []
        subscriptions: list[SubscriptionLog] = []
        absences: list[Fault] = []
        for process in sorted(self.folder.glob("raw/*/*")):
            host = process.parent.name
            err_ns = self.clocks.worst_ns((host, other) for other in load_hosts)
            absences += absences_of(process, err_ns, self._to_timeline)
            publishers += self._publishers(process, publishers)
            subscriptions += self._subscriptions(process, subscriptions)
        return publishers, subscriptions, absences

    @cached_property
    def _accepted_losses(self) -> list[AcceptedLoss]:
        return accepted_losses_of(self.folder, self._to_timeline)

    def _find_sent_again(
        self, source: str, host: str, published: Sequence[Any], answers: Sequence[Any]
    ) -> Iterator[tuple[int, int]]:
        broker = source.rpartition("/")[0]
        losses = [loss for loss in self._accepted_losses if loss.broker == broker]
        return find_sent_again(losses, published, answers, self.clocks, self._to_timeline, host)

    def _routes(self) -> dict[tuple[str, str], list[str]] | None:
        if "routes" not in self.overlay:
            return None
        return {(row["from"], row["to"]): row["over"] for row in self.overlay["routes"]}

    def _list_requirements(self) -> Mapping[str, Any]:
        """Return the tests that the fault schedule requires."""
        path = self.folder / "spec" / "faults.toml"
        required: Mapping[str, Any] = read_toml(path).get("exercised", {}) if path.is_file() else {}
        return required

    def _check_manifest(self) -> Iterator[str]:
        manifest, workload = self.manifest, self.workload
        if manifest.get("state") != "complete":
            why = "; ".join(map(str, manifest.get("reasons") or ()))
            yield doubt("state", state=manifest.get("state")) + (f": {why}" if why else "")
        if manifest.get("loadgen_saturated"):
            yield doubt("saturated")
        if self.is_cut_short and manifest.get("drain"):
            yield doubt("still_arriving", s=float(manifest["drain"].get("took_s", 0.0)))
        for name, stated in (
            ("seed", workload.get("seed")),
            ("workload", workload.get("name")),
            ("topology", self.topology.get("name")),
        ):
            if name in manifest and manifest[name] != stated:
                yield doubt("other_spec", name=name, found=manifest[name], wanted=stated)

    def _check_exercise(self, fault_log: FaultLog) -> Iterator[str]:
        absorbed = sum(fault.absorbed or 0 for fault in fault_log.faults)
        wanted = self._list_requirements().get("absorbed_msgs_min", 0)
        if absorbed < wanted and not self.is_simulated:
            yield doubt("absorbed_little", n=absorbed, minimum=wanted)

    def _miss(self, role: str, wanted: list[str], found: list[str]) -> None:
        if lost := [name for name in wanted if name not in found]:
            more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
            self.doubts.append(doubt("no_log", who=f"{role} {', '.join(lost[:3])}{more}"))

    def _clock_errors(
        self, publishers: list[PublisherLog], subscriptions: list[SubscriptionLog]
    ) -> dict[tuple[str, str], int | None]:
        return {
            (s.subscription, p.source): self.clocks.error_ns(
                self.host_of[s.subscription], self.host_of[p.source]
            )
            for s in subscriptions
            for p in publishers
        }

    def _to_timeline(self, stamp_ns: int, host: str) -> int:
        return stamp_ns - self.clocks.offset_ns(host, stamp_ns) - self.origin_ns

    def _read(self, process: Path, layout: str) -> Records | None:
        records = read_records(process, layout, self.run_id, self.wanted)
        if records is not None:
            self.doubts += records.doubts
            self.records[process, layout] = records
            if layout in ("publications", "acks", "deliveries"):
                self._records.append((layout, records))
        return records

    def to_timeline(self, stamp_ns: int, host: str) -> int:
        """Return a stamp of a host, moved to the time line; see `Timeline`."""
        return self._to_timeline(stamp_ns, host)

    def error_ns(self, a: str, b: str) -> int | None:
        """Return the maximum error between stamps of two hosts; see `Timeline`."""
        return self.clocks.error_ns(a, b)

    def _check_witnesses(self) -> tuple[str, ...]:
        """Return the doubts of witnesses, once all records have been read."""
        if self._rows is None:
            return ()
        return doubts_of_witnesses(RunFolder(self.folder, self), self._rows)

    @cached_property
    def _rows(self) -> Rows | None:
        """The counts of all records, once they have been read; None if only a part is read."""
        if self.wanted is not None:
            return None
        return Count(self.records, self._to_timeline, self.content.fence_set, self.measured).rows()

    def _check_times(self) -> Iterator[str]:
        timed = TimeFacts(
            self.folder,
            self.manifest,
            self.workload,
            self.content,
            self.phases,
            self.is_simulated,
            self._to_timeline,
            self.clocks.error_ns,
        )
        ours = [
            (layout, each)
            for layout, each in self._records
            if not any("is of run" in doubt for doubt in each.doubts)
        ]
        yield from timed.doubts(ours)

    def _check_specification(self) -> Iterator[str]:
        """Yield doubts about the digest of spec/ in the manifest and the journal."""
        spec = self.folder / "spec"
        listed = sorted(p.relative_to(spec).as_posix() for p in spec.rglob("*") if p.is_file())
        whole = hashlib.sha256()
        for name in listed:
            whole.update(hashlib.sha256((spec / name).read_bytes()).hexdigest().encode())
            whole.update(f"  {name}\n".encode())
        found = whole.hexdigest()
        journal: Mapping[str, Any] = next(
            (x for x in read_lines(self.folder / "log.jsonl") if x.get("what") == "specification"),
            {},
        )
        stated = (
            ("manifest.json", self.manifest.get("specification_digest")),
            ("log.jsonl", journal.get("digest")),
        )
        is_old = self.manifest.get("schema") in (None, "", "pubsubctl/manifest/1")
        for file, digest in stated:
            if digest not in (None, found):
                yield doubt("other_digest", file=file, found=digest, wanted=found)
            if digest is None and not (is_old and stated[0][1] is stated[1][1] is None):
                yield doubt("no_digest", file=file)
        before, after = journal.get("promises"), self.manifest.get("promises")
        if before not in (None, after):
            yield doubt("other_promises", found=before, wanted=after)

    # --- Publishers ---------------------------------------------------------------------------

    def _publishers(self, process: Path, before: list[PublisherLog]) -> Iterator[PublisherLog]:
        records, acks = self._read(process, "publications"), self._read(process, "acks")
        intents = self._read(process, "intents")
        if records is None or not records.tables.get("publishers"):
            return
        sets = [dict(self.content.attributes(n)) for n in range(self.content.fence_set + 1)]
        found = records.tables.get("attribute_sets")
        # True equals 1 in Python, and is another value.
        if found != sets or any(
            type(found[n][name]) is not type(value)
            for n, attributes in enumerate(sets)
            for name, value in attributes.items()
        ):
            self.doubts.append(f"{records.name}: other attribute sets than the seed's")
        taken = {text for log in before for text in (log.source, log.name)}
        for number, source in enumerate(records.tables["publishers"]):
            name = str((records.tables.get("publisher_names") or {}).get(source, ""))
            if name not in self.content.publishers:
                self.doubts.append(doubt("not_in_workload", who=f"source {source} ({name!r})"))
                continue
            if {source, name} & taken:
                self.doubts.append(doubt("twice", what=f"source {source} of publisher {name}"))
                continue
            taken |= {source, name}
            wanted = self.content.publishers[name].broker
            if (broker := source.rpartition("/")[0]) != wanted:
                self.doubts.append(
                    doubt("elsewhere", who=f"publisher {name}", found=broker, wanted=wanted)
                )
            self.host_of[source] = records.host
            published = [row for row in records.rows if row["publisher"] == number]
            answers = _select_source(acks, source)
            reserved = _select_source(intents, source)
            for incarnation in sorted({row["incarnation"] for row in published}):
                highest, limit = (
                    max((r[name] for r in rows if r["incarnation"] == incarnation), default=0)
                    for name, rows in (("sequence", published), ("last", reserved))
                )
                if intents is not None and highest > limit:
                    self.doubts.append(doubt("unreserved", source=source, highest=highest))
            yield PublisherLog(
                source,
                name,
                [
                    PublicationRow(
                        row["incarnation"], row["sequence"], row["attribute_set"],
                        self._to_timeline(row["at_ns"], records.host),
                    )
                    for row in published
                ],
                [(r["incarnation"], r["first"], r["last"], r["outcome"]) for r in answers],
                closed=records.whole and (acks is None or acks.whole),
                sent_again=frozenset(
                    self._find_sent_again(source, records.host, published, answers)
                ),
            )  # fmt: skip

    # --- Subscribers --------------------------------------------------------------------------

    def _subscriptions(
        self, process: Path, before: list[SubscriptionLog]
    ) -> Iterator[SubscriptionLog]:
        records = self._read(process, "deliveries")
        placed = self._places(process, records)
        lines: dict[str, Mapping[str, Any]] = {}
        taken = {log.subscription for log in before}
        for line in read_lines(process / "subscriptions.jsonl"):
            name = self._verify(process, line)
            if name in lines or name in taken:
                self.doubts.append(doubt("twice", what=f"subscription {name}"))
            else:
                lines[name] = line
        is_ours = records is not None and not any("is of run" in d for d in records.doubts)
        names = records.tables.get("subscriptions", ()) if records is not None and is_ours else ()
        numbered = records.tables.get("subscriptions", ()) if records is not None else ()
        rows: dict[str, list[dict[str, int]]] = {}
        for row in records.rows if records is not None else ():
            if row["layer"] == _APPLICATION:
                rows.setdefault(numbered[row["subscription"]], []).append(row)
        for name in dict.fromkeys([*lines, *names]):
            if name in taken:
                self.doubts.append(doubt("twice", what=f"deliveries to subscription {name}"))
                continue
            self.host_of[name] = process.parent.name
            yield self._subscription(
                name, lines.get(name, {}), records, rows.get(name, ()), process, placed
            )

    def _find_received_elsewhere(
        self, publishers: Sequence[PublisherLog]
    ) -> dict[str, frozenset[Key]]:
        """Return unanswered publications of the sources that other subscriptions received."""
        if self.wanted is None:
            return {}
        open_: dict[str, set[Key]] = {}
        for log in publishers:
            keys = {row.key for row in log.published}
            for incarnation, first, last, _ in log.answers:
                if last - first < len(keys):
                    keys.difference_update((incarnation, n) for n in range(first, last + 1))
                else:
                    keys = {k for k in keys if k[0] != incarnation or not first <= k[1] <= last}
            if keys:
                open_[log.source] = keys
        found: dict[str, set[Key]] = {}
        of_open = StreamSelection(frozenset(open_), self._all_subscriptions()) if open_ else None
        for process in sorted(self.folder.glob("raw/*/*")) if of_open else ():
            records = read_records(process, "deliveries", self.run_id, of_open)
            for row in records.rows if records is not None else ():
                assert records is not None
                source = records.tables["publishers"][row["publisher"]]
                if row["layer"] != _APPLICATION or row["kind"] in (GAP, NOTICE):
                    continue
                keys = {(row["incarnation"], row["sequence"])}
                if row["kind"] == STRETCH:
                    if all(n > row["sequence"] for _, n in open_[source]):
                        continue
                    name = records.tables["subscriptions"][row["subscription"]]
                    predicate = self._predicates().get(name.partition("/")[0], "true")
                    keys = {one.key for one in self._stretches.unfold(source, predicate, row, 0)}
                found.setdefault(source, set()).update(keys & open_[source])
        return {source: frozenset(keys) for source, keys in found.items()}

    def _all_subscriptions(self) -> frozenset[str]:
        names: set[str] = set()
        for sidecar in self.folder.glob("raw/*/*/deliveries.rec.json"):
            names |= {*((read_json(sidecar).get("tables") or {}).get("subscriptions") or ())}
        return frozenset(names)

    def _predicates(self) -> dict[str, str]:
        return {
            name: str(entry.get("filter", "true"))
            for name, _, entry in clients_of(self.workload, "subscribers", "sub")
        }

    def _places(self, process: Path, records: Records | None) -> dict[int, tuple[str, int]]:
        """Return stream and position, by row of the deliveries."""
        positions = None if self.wanted is not None else self._read(process, "positions")
        if positions is None:
            return {}
        rows = 0 if records is None else len(records.rows)
        if records is not None and not records.whole and not rows:
            return {}
        found = {}
        for row in positions.rows:
            if not 0 <= row["row"] < rows:
                raise FileRefusal(f"{positions.name}: the position of a delivery that is not there")
            found[row["row"]] = positions.tables["streams"][row["stream"]], row["position"]
        return found

    def _verify(self, process: Path, line: Mapping[str, Any]) -> str:
        texts = [line.get(name) for name in ("sub_id", "subscriber", "broker", "predicate")]
        times = [line.get(name) for name in ("t_issued_ns", "t_accepted_ns")]
        if not all(isinstance(text, str) for text in texts):
            raise FileRefusal(f"{process}: {texts} is no subscription")
        if not all(isinstance(time, int | None) for time in times):
            raise FileRefusal(f"{process}: {times} are no times")
        wanted = {
            name: (broker, entry.get("filter", "true"))
            for name, broker, entry in clients_of(self.workload, "subscribers", "sub")
        }
        sub_id, subscriber, broker, predicate = map(str, texts)
        wants(predicate)
        name_of = f"subscription {sub_id}"
        if subscriber not in wanted or sub_id.partition("/")[0] != subscriber:
            self.doubts.append(doubt("not_in_workload", who=name_of))
        elif broker != wanted[subscriber][0]:
            self.doubts.append(
                doubt("elsewhere", who=name_of, found=broker, wanted=wanted[subscriber][0])
            )
        elif predicate != wanted[subscriber][1]:
            self.doubts.append(
                doubt("other_predicate", who=name_of, found=predicate, wanted=wanted[subscriber][1])
            )
        return sub_id

    def _subscription(
        self,
        name: str,
        line: Mapping[str, Any],
        records: Records | None,
        rows: Sequence[Mapping[str, int]],
        process: Path,
        placed: Mapping[int, tuple[str, int]],
    ) -> SubscriptionLog:
        host = process.parent.name
        delivered: list[DeliveryRow] = []
        notices: list[Notice] = []
        places: list[int] = []  # places in the file, by delivery
        predicate = line.get("predicate", "true")
        for row in rows:
            assert records is not None
            number, place = row["number"], row["place"]
            source = records.tables["publishers"][row["publisher"]]
            at_ns = self._to_timeline(row["at_ns"], host)
            if row["kind"] == NOTICE:
                partition = Partition.from_mapping(records.tables["partitions"][row["partition"]])
                last = row["sequence"] + row["digest"] - 1
                notices.append(
                    Notice(
                        source, row["incarnation"], row["sequence"], last, partition,
                        len(delivered), at_ns,
                    )
                )  # fmt: skip
            elif row["kind"] == STRETCH:
                delivered += self._stretches.unfold(source, predicate, row, at_ns)
                places += range(place, place + row["digest"])
            else:
                places.append(place)
                delivered.append(
                    DeliveryRow(
                        source, row["incarnation"], row["sequence"], at_ns, row["digest"],
                        row["kind"], 0, *placed.get(number, ("", 0)),
                    )
                )  # fmt: skip
        issued_ns, accepted_ns = line.get("t_issued_ns"), line.get("t_accepted_ns")
        return SubscriptionLog(
            subscription=name,
            broker=line.get("broker", self._home_of(name)),
            predicate=predicate,
            delivered=delivered,
            closed=records is not None and records.whole and not self.is_cut_short,
            notices=notices,
            started=bool(accepted_ns),
            issued_ns=self._to_timeline(issued_ns, host) if issued_ns else None,
            accepted_ns=self._to_timeline(accepted_ns, host) if accepted_ns else None,
            gaps=gaps_of(
                process, name, places, self._publisher_of, self.promises, self._to_timeline
            ),
            commits=commits_of(process / "commits.jsonl", name, places),
        )

    def _home_of(self, subscription: str) -> str:
        clients = clients_of(self.workload, "subscribers", "sub")
        brokers = {name: broker for name, broker, _ in clients}
        return brokers.get(subscription.partition("/")[0], "unknown")


def _select_source(records: Records | None, source: str) -> list[dict[str, int]]:
    if records is None:
        return []
    names = records.tables.get("publishers", ())
    return [row for row in records.rows if names[row["publisher"]] == source]
