"""The second verdict on a run, by the reference, without a rule of the check on Spark.

The reference judges a small run whole. Of a large run the reference judges a sample of whole
streams: some sources to some subscriptions, drawn by a seed in the verdict. If the judges disagree,
one judge is wrong: the verdict is UNKNOWN, and shows both.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

from results.reference.files import FileRefusal
from results.reference.history import Judgement
from results.reference.history_reader import judge_folder, read_streams
from results.reference.rule import check
from results.rules.findings import Findings, PairSummary
from results.rules.terms import Counts, VerdictName

MOST_ROWS = 50_000
"""Limit of rows of a whole run; the reference needs a few seconds for this number."""
LARGEST_STREAM = 40 * MOST_ROWS
"""Limit of rows of a single stream; a sample has at least one stream, unless all are longer."""
_TRIED = 1_000
_ACROSS_STREAMS = ("order_differs", "place_back", "place_taken", "place_order")
"""Violations that single streams do not show."""


def second_opinion(
    folder: Path, verdict: VerdictName, counts: Counts, judgement: Judgement | None = None
) -> dict[str, Any]:
    """Return the judgement of the reference, for verdict.json; `differs` lists differences.

    Args:
        verdict: the verdict by the doubts of the run itself, without doubts about missing tests.
        judgement: the judgement of the reference, if it exists.
    """
    try:
        found = judgement if judgement is not None else judge_folder(folder)
    except FileRefusal as error:
        return {"verdict": None, "differs": f"the plain judge refuses the run: {error}"}
    ours, theirs = _describe(verdict, counts), _describe(found.verdict, found.counts)
    if ours != theirs:
        other = [f"{name} {theirs[name]!r}, not {ours[name]!r}" for name in ours
                 if ours[name] != theirs[name]]  # fmt: skip
        doubts = f"; it doubts: {'; '.join(found.doubts)}" if found.verdict == "UNKNOWN" else ""
        return {
            "verdict": found.verdict.lower(),
            "doubts": len(found.doubts),
            "spark": verdict.lower(),
            "differs": f"Spark finds {verdict}, the plain judge {found.verdict}: "
            f"{', '.join(other)}{doubts}",
        }
    return {"verdict": found.verdict.lower(), "doubts": len(found.doubts)}


def disagreement(second: Mapping[str, Any] | None) -> str:
    """Return the reason of an UNKNOWN verdict, with both opinions; "" if the judges agree."""
    differs = (second or {}).get("differs")
    return f"the judges differ: {differs}" if differs else ""


@dataclass(frozen=True)
class StreamSample:
    """The streams of a run that are judged twice: all of `sources` to `subscriptions`.

    Attributes:
        seed: seed of the draw.
        streams: number of all streams of the run.
        rows: approximate number of rows of the sample.
    """

    seed: int
    sources: tuple[str, ...]
    subscriptions: tuple[str, ...]
    streams: int
    rows: int

    @property
    def size(self) -> int:
        """The number of streams."""
        return len(self.sources) * len(self.subscriptions)

    @classmethod
    def of(cls, run_id: str, pairs: Sequence[PairSummary]) -> "StreamSample | None":
        """Draw a sample; return None if no stream is short enough to be judged row by row."""
        seed = crc32(run_id.encode())
        received = {(pair.sub_id, pair.pubend): pair.received for pair in pairs}
        published: dict[str, int] = {}
        for pair in pairs:
            published[pair.pubend] = max(published.get(pair.pubend, 0), pair.last_seq or 0)

        def rows_of(subscriptions: Iterable[str], sources: Iterable[str]) -> int:
            both = [(s, p) for s in subscriptions for p in sources]
            return sum(received[pair] for pair in both) + sum(published[p] for p in sources)

        drawn = Random(seed).sample([*received], len(received))
        chosen: tuple[dict[str, None], dict[str, None]] = {}, {}
        for subscription, source in drawn[:_TRIED]:
            wider = {**chosen[0], subscription: None}, {**chosen[1], source: None}
            if rows_of(*wider) <= MOST_ROWS:
                chosen = wider
        if not chosen[0]:
            shortest = min(drawn, key=lambda pair: rows_of(pair[:1], pair[1:]), default=None)
            if shortest is None or rows_of(shortest[:1], shortest[1:]) > LARGEST_STREAM:
                return None
            chosen = {shortest[0]: None}, {shortest[1]: None}
        return cls(seed, tuple(chosen[1]), tuple(chosen[0]), len(received), rows_of(*chosen))

    def describe(self) -> str:
        return (
            f"second opinion: {self.size:,} of {self.streams:,} streams were judged twice, row by "
            f"row ({self.rows:,} rows, seed {self.seed}), and alike"
        )


def judge_sample(folder: Path, sample: StreamSample, findings: Findings) -> dict[str, Any]:
    """Return the second opinion on a sample of streams, for verdict.json.

    `differs` lists the differences between the judges on the sample.
    """
    drawn = {
        "streams": sample.size, "of": sample.streams, "rows": sample.rows, "seed": sample.seed,
    }  # fmt: skip
    try:
        found = check(read_streams(folder, sample.sources, sample.subscriptions))
    except FileRefusal as error:
        return {**drawn, "differs": f"the plain judge refuses the run: {error}"}
    ours, theirs = _count_with_spark(sample, findings), _count_with_reference(found)
    if ours != theirs:
        names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
        other = [f"{name} {theirs.get(name, 0)!r}, not {ours.get(name, 0)!r}" for name in names]
        differs = (
            f"of {', '.join(sample.sources)} to {', '.join(sample.subscriptions)} "
            f"(seed {sample.seed}), the plain judge finds {', '.join(other)}"
        )
        return {**drawn, "differs": differs}
    return {**drawn, "owed": ours["owed"]}


def _count_with_spark(sample: StreamSample, findings: Findings) -> dict[str, Any]:
    """Return the counts of the check on Spark for the streams of a sample."""
    pairs = [
        pair
        for pair in findings.pairs
        if pair.sub_id in sample.subscriptions and pair.pubend in sample.sources
    ]
    found = Counter[str]()
    for pair in pairs:
        if pair.started:
            found["owed"] += pair.owed
            found["delivered"] += pair.delivered
            found["undecided"] += pair.undecided
            found["kept back"] += pair.withheld
        found.update(findings.violations_of.get((pair.sub_id, pair.pubend), {}))
    return {name: n for name, n in found.items() if n and name not in _ACROSS_STREAMS}


def _count_with_reference(found: Judgement) -> dict[str, Any]:
    counts = found.counts
    kept_back = sum(counts.withheld.values()) + sum(counts.announced.values())
    of_streams = {
        kind: n
        for kind, n in counts.violations.items()
        if kind not in (*_ACROSS_STREAMS, "sequence_reuse")
    }
    counted = {
        "owed": counts.owed, "delivered": counts.delivered, "undecided": counts.undecided,
        "kept back": kept_back, **of_streams,
    }  # fmt: skip
    return {name: n for name, n in counted.items() if n}


def _describe(verdict: VerdictName, counts: Counts) -> Mapping[str, Any]:
    return {
        "verdict": verdict,
        **{name: getattr(counts, name) for name in Counts.__dataclass_fields__},
    }
