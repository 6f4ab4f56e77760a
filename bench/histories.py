"""`python -m bench.histories`: generate histories of any size, to test checkers with.

A history is a run folder in the format of load generators, for publishers and subscribers at a
broker that never existed. As usual, the seed determines published and owed publications. Every owed
publication is delivered in order, apart from planted mistakes. Time advances by a microsecond with
every publication.
"""

import argparse
import json
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from bench.load.content import FENCE, ContentTables, SourceContent, draw_attribute_sets
from bench.load.expected_content import MatchingSequences, MatchTables
from bench.load.records import delivery_rows, publication_rows
from bench.load.splitmix import splitmix64
from bench.run.run_directory import RunDirectory, new_run_directory
from brokerd.errors import ConfigError
from brokerd.history.records import ACKNOWLEDGED, ACKS, DELIVERIES, PUBLICATIONS
from brokerd.history.writer import LineWriter, RecordWriter
from brokerd.overlay.topology import nearest
from brokerd.protocols.registry import DEFAULT
from brokerd.text import toml_text
from brokerd.wire.attributes import encode_attributes
from results.rules.expectation import encode_attributes as expected_blob
from results.rules.expectation import parse_predicate

NAME: Final = "made"
BROKER: Final = "c1"
HOST: Final = "simulated"
INCARNATION: Final = 1
CHUNK: Final = 4_096
"""Number of consecutive publications of one publisher, before the next publisher."""
SETS: Final = 100
SIZE: Final = "100B"
ATTRIBUTES: Final[Mapping[str, Mapping[str, Any]]] = {
    "symbol": {"choose": 10}, "price": {"uniform": [1, 500]},
}  # fmt: skip
FILTERS: Final = ("true", "symbol = 'SYMBOL001'", "price <= 250", "true")
MUTATIONS: Final = {
    "missing": "owed, and not delivered",
    "duplicate": "delivered twice",
    "reordered": "delivered behind the one that follows it",
    "wrong_match": "delivered though the subscription does not match it",
    "corrupted": "delivered with another content",
}
_STEP_NS: Final = 1_000
_SECOND_NS: Final = 1_000_000_000


@dataclass(frozen=True)
class HistoryRequest:
    """The parameters of a history.

    Attributes:
        deliveries: approximate number of deliveries.
        mutations: number of mistakes by kind, at places drawn from the seed.
    """

    deliveries: int
    publishers: int = 4
    subscribers: int = 8
    seed: int = 1
    mutations: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for kind, count in self.mutations.items():
            if kind not in MUTATIONS:
                raise ConfigError(f"no mutation {kind!r}{nearest(kind, [*MUTATIONS])}")
            if count < 1:
                raise ConfigError(f"{kind} = {count}: at least one")


@dataclass(frozen=True)
class GeneratedHistory:
    """A generated history.

    Attributes:
        run: the folder.
        published, delivered: rows of data, without fences.
        mistakes: number of mistakes by kind.
    """

    run: Path
    published: int
    delivered: int
    mistakes: Mapping[str, int]


def make_history(request: HistoryRequest, runs: Path) -> GeneratedHistory:
    """Write a history into a new folder below `runs`.

    Raises:
        ConfigError: the history is too small for the requested mistakes.
    """
    directory = RunDirectory(new_run_directory(runs, NAME))
    try:
        return _Maker(request, directory).make()
    except BaseException:
        directory.leave()
        raise


class _Maker:
    def __init__(self, request: HistoryRequest, directory: RunDirectory) -> None:
        self._request = request
        self._directory = directory
        sets = draw_attribute_sets(request.seed, dict(ATTRIBUTES), SETS)
        tables = ContentTables.build(request.seed, sets, 100, encode_attributes, ATTRIBUTES)
        match = MatchTables(sets)
        self._filters = [FILTERS[n % len(FILTERS)] for n in range(request.subscribers)]
        self._contents = [
            SourceContent(tables, request.seed, n, INCARNATION, block_size=CHUNK)
            for n in range(request.publishers)
        ]
        by_filter = {text: match.table(parse_predicate(text)) for text in set(self._filters)}
        share = sum(sum(by_filter[text]) / SETS for text in self._filters)
        chunks = max(1, round(request.deliveries / share / CHUNK / request.publishers))
        self._chunks = chunks
        self._matching = [
            {text: MatchingSequences(content, by_filter[text]) for text in by_filter}
            for content in self._contents
        ]
        self._fence_crc = crc32(expected_blob({FENCE: directory.run_id}))
        self._tables = tables
        self._origin_ns = 1_000 * _SECOND_NS
        self._now_ns = self._origin_ns - _SECOND_NS
        self._mutated = self._draw_mistakes()
        self.mistakes = dict.fromkeys(request.mutations, 0)
        self._delivered = 0

    def make(self) -> GeneratedHistory:
        directory, request = self._directory, self._request
        self._begin()
        folder = directory.raw_folder(HOST, "load-pub")
        self._publications = RecordWriter(folder, PUBLICATIONS, directory.run_id)
        self._acks = RecordWriter(folder, ACKS, directory.run_id)
        folder = directory.raw_folder(HOST, "load-sub")
        self._deliveries = RecordWriter(folder, DELIVERIES, directory.run_id)
        lines = LineWriter(folder / "subscriptions.jsonl")
        for number, text in enumerate(self._filters, start=1):
            name = f"{BROKER}-sub-{number}"
            lines.write(
                {
                    "sub_id": f"{name}/1", "subscriber": name, "broker": BROKER, "predicate": text,
                    "t_issued_ns": self._now_ns - 2, "t_accepted_ns": self._now_ns - 1,
                }
            )  # fmt: skip
        lines.close()
        for publisher in range(request.publishers):
            self._fence(publisher, 1)
        self._now_ns = self._origin_ns
        for chunk in range(self._chunks):
            for publisher in range(request.publishers):
                self._publish(publisher, chunk)
        end_ns = self._now_ns = self._now_ns + _SECOND_NS
        for publisher in range(request.publishers):
            self._fence(publisher, self._chunks * CHUNK + 1)
        self._close(end_ns)
        published = self._chunks * CHUNK - 1  # the first number is the fence
        return GeneratedHistory(
            directory.path, published * request.publishers, self._delivered, self.mistakes
        )

    # ------------------------------------------------------------ publications

    def _publish(self, publisher: int, chunk: int) -> None:
        first = max(2, chunk * CHUNK + 1)
        sequences = range(first, (chunk + 1) * CHUNK + 1)
        block = self._contents[publisher].block_of(first)
        began_ns = self._now_ns
        self._now_ns += _STEP_NS * len(sequences)
        intended = array("q", range(began_ns, self._now_ns, _STEP_NS))
        sets = block.sets[first - block.first :]
        rows = publication_rows(sequences, intended, self._now_ns, publisher, INCARNATION, sets)
        self._publications.append(rows)
        self._acknowledge(publisher, sequences)
        for number, text in enumerate(self._filters):
            matching = self._matching[publisher][text].find_in_block(first)
            matching = matching[bisect_left(matching, first) :]
            self._deliver(number, publisher, matching, block.digests, block.first)

    def _fence(self, publisher: int, sequence: int) -> None:
        payload = self._tables.payloads[self._contents[publisher].choice(sequence)[1]]
        digests = array("I", [crc32(payload, self._fence_crc)])
        self._now_ns += _STEP_NS
        stamp = array("q", [self._now_ns])
        self._publications.append(
            publication_rows(
                range(sequence, sequence + 1), stamp, self._now_ns, publisher, INCARNATION, [SETS]
            )
        )
        self._acknowledge(publisher, range(sequence, sequence + 1))
        for number in range(len(self._filters)):
            self._deliveries.append(
                delivery_rows(
                    [sequence], self._now_ns, digests, number, publisher, INCARNATION, [0]
                )
            )

    def _acknowledge(self, publisher: int, numbers: range) -> None:
        self._now_ns += _STEP_NS
        self._acks.append(
            ACKS.row.pack(
                numbers[0], numbers[-1], self._now_ns, publisher, INCARNATION, ACKNOWLEDGED
            )
        )

    # ------------------------------------------------------------ deliveries

    def _deliver(
        self, subscription: int, publisher: int, sequences: Sequence[int], digests: "array[int]",
        first: int,
    ) -> None:  # fmt: skip
        self._now_ns += _STEP_NS
        chosen = array("I", [digests[sequence - first] for sequence in sequences])
        kinds = self._mutated.pop((subscription, publisher, first), ())
        if kinds:
            sequences, chosen = self._wrong(kinds, sequences, chosen, digests, first)
        if sequences:
            numbers = subscription, publisher, INCARNATION
            self._deliveries.append(delivery_rows(sequences, self._now_ns, chosen, *numbers))
            self._delivered += len(sequences)

    def _wrong(
        self, kinds: Sequence[str], sequences: Sequence[int], chosen: "array[int]",
        digests: "array[int]", first: int,
    ) -> tuple[list[int], "array[int]"]:  # fmt: skip
        """Return the deliveries of a chunk with mistakes, each far from the others."""
        rows = [*zip(sequences, chosen, strict=True)]
        step = len(rows) // (len(kinds) + 1)
        for place, kind in zip(range(step * len(kinds), 0, -step), kinds, strict=False):
            sequence, digest = rows[place]
            if kind == "missing":
                del rows[place]
            elif kind == "duplicate":
                rows.insert(place + 1, rows[place])
            elif kind == "reordered":
                rows[place], rows[place + 1] = rows[place + 1], rows[place]
            elif kind == "corrupted":
                rows[place] = sequence, digest ^ 1
            else:
                while rows[place + 1][0] == rows[place][0] + 1:
                    place += 1  # no publication in between fails to match
                other = rows[place][0] + 1
                rows.insert(place + 1, (other, digests[other - first]))
            self.mistakes[kind] += 1
        return [sequence for sequence, _ in rows], array("I", [digest for _, digest in rows])

    def _draw_mistakes(self) -> dict[tuple[int, int, int], list[str]]:
        """Return the mistakes by subscription, publisher and first number of the chunk."""
        found: dict[tuple[int, int, int], list[str]] = {}
        narrow = [n for n, text in enumerate(self._filters) if "symbol" in text]
        drawn = splitmix64(self._request.seed ^ 0x6D61)
        for kind, count in self._request.mutations.items():
            among = narrow if kind == "wrong_match" else range(len(self._filters))
            if not among:
                raise ConfigError(
                    f"{kind}: every subscription matches everything; use more subscribers"
                )
            for _ in range(count):
                drawn = splitmix64(drawn)
                key = (
                    among[drawn % len(among)], (drawn >> 16) % self._request.publishers,
                    (drawn >> 32) % self._chunks * CHUNK + 1,
                )  # fmt: skip
                if len(found.setdefault(key, [])) >= CHUNK // 100:
                    raise ConfigError(f"{kind} = {count}: too many mistakes for so few deliveries")
                found[key].append(kind)
        return found

    # ------------------------------------------------------------ the folder

    def _begin(self) -> None:
        request, directory = self._request, self._directory
        topology = {
            "schema": "pubsubctl/topology/2", "name": "single", "kind": "tree",
            "brokers": [BROKER], "links": [], "tree": {"delta": 1},
        }  # fmt: skip
        workload = {
            "schema": "pubsubctl/workload/1", "name": NAME, "topology": "single",
            "protocol": DEFAULT, "seed": request.seed, "calm": True,
            "guarantee": {"delivery": "exactly-once", "order": "publisher", "gapless": True},
            "bars": {"deliveries_per_pair_min": 1},
            "phases": {"warmup": "1s", "measure": "1s", "drain": "30s"},
            "attributes": {"sets": SETS, **ATTRIBUTES},
            "publishers": [
                {"at": [BROKER], "count": request.publishers, "rate": "max", "size": SIZE}
            ],
            "subscribers": [
                {"at": [BROKER], "count": 1, "filter": text} for text in self._filters
            ],
        }  # fmt: skip
        directory.begin(
            NAME,
            {
                "protocol": DEFAULT, "seed": request.seed, "workload": NAME,
                "topology": "single", "labels": {"brokers": "simulated", "history": NAME},
                "phases": [], "clock": {"host_id": HOST, "boot_id": directory.run_id},
                "mistakes": dict(request.mutations),
            },
        )  # fmt: skip
        directory.write_spec("workload.toml", toml_text(workload))
        directory.write_spec("topology.toml", toml_text(topology))
        directory.close_specification()

    def _close(self, end_ns: int) -> None:
        identities = [f"{BROKER}/{number}" for number in range(1, self._request.publishers + 1)]
        names = {
            identity: f"{BROKER}-pub-{number}" for number, identity in enumerate(identities, 1)
        }
        fence = {FENCE: self._directory.run_id}
        published = {
            "publishers": identities,
            "attribute_sets": [*self._tables.attribute_sets, fence],
            "publisher_names": names,
        }
        self._publications.close(published)
        self._acks.close(published)
        subscriptions = [f"{BROKER}-sub-{n}/1" for n in range(1, len(self._filters) + 1)]
        self._deliveries.close(
            {"publishers": identities, "subscriptions": subscriptions, "partitions": []}
        )
        stops = [*self._phases(end_ns)]
        self._directory.manifest["phases"] = stops
        self._directory.manifest["origin_ns"] = self._origin_ns
        self._directory.end("complete")

    def _phases(self, end_ns: int) -> Iterator[dict[str, Any]]:
        begin_ns, measured_ns = self._origin_ns, end_ns - _SECOND_NS // 2
        for phase, t0, t1 in (
            ("deploy", begin_ns - 3 * _SECOND_NS, begin_ns - 2 * _SECOND_NS),
            ("warmup", begin_ns - 2 * _SECOND_NS, begin_ns),
            ("measure", begin_ns, measured_ns),
            ("drain", measured_ns, self._now_ns + _SECOND_NS),
        ):
            yield {"phase": phase, "t0_ns": t0, "t1_ns": t1}


def main() -> int:
    """Generate a history, and print its folder; with --json print its content as JSON."""
    kinds = "; ".join(f"{kind}: {meaning}" for kind, meaning in MUTATIONS.items())
    parser = argparse.ArgumentParser(prog="python -m bench.histories", description=__doc__)
    parser.add_argument("--deliveries", type=int, default=100_000, help="about so many")
    parser.add_argument("--publishers", type=int, default=4)
    parser.add_argument("--subscribers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mutate", metavar="KIND=N", action="append", default=[], help=kinds)
    parser.add_argument("-o", "--output-dir", type=Path, default=Path("results/runs"))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    try:
        mutations = {}
        for text in given.mutate:
            kind, _, count = text.partition("=")
            if not count.isdecimal():
                raise ConfigError(f"--mutate {text}: a kind and how many, such as missing=3")
            mutations[kind] = int(count)
        for option in ("deliveries", "publishers", "subscribers"):
            if getattr(given, option) < 1:
                raise ConfigError(f"--{option} {getattr(given, option)}: at least one")
        request = HistoryRequest(
            given.deliveries, given.publishers, given.subscribers, given.seed, mutations
        )
        made = make_history(request, given.output_dir)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if given.json:
        about = {
            "run_directory": str(made.run), "published": made.published,
            "delivered": made.delivered, "mistakes": dict(made.mistakes),
        }  # fmt: skip
        print(json.dumps(about))
    else:
        wrong = ", ".join(f"{n} {kind}" for kind, n in made.mistakes.items()) or "nothing wrong"
        print(f"{made.published:,} published, {made.delivered:,} delivered, {wrong}")
        print(made.run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
