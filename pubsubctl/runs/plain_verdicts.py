"""Verdicts of the plain judge, seconds after a run; Spark must agree with each later.

The plain judge (`results.reference`) reads the logs row by row. Its verdict on a run of up to
`MOST_DELIVERIES` logged deliveries is printed before Spark starts.
"""

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pubsubctl.console.console import Progress

if TYPE_CHECKING:
    from results.reference.history import Judgement

MOST_DELIVERIES: Final = 500_000


@dataclass(frozen=True)
class PlainVerdict:
    """A verdict of the plain judge.

    Attributes:
        because: the reasons, with the names of publishers.
        text: verdict, guarantee and counts, in a line.
        took_s: the duration of the judgement.
    """

    run: Path
    judgement: "Judgement"
    because: tuple[str, ...]
    text: str
    took_s: float

    def lines(self) -> list[str]:
        """Return the verdict for people, and the reasons of an UNKNOWN verdict."""
        reasons = self.because if self.judgement.verdict == "UNKNOWN" else ()
        return [f"{self.text} (plain judge, {self.took_s:.1f} s)", *(f"  {why}" for why in reasons)]


def logged_deliveries(run: Path) -> int:
    """Return the number of rows in the delivery logs of a run; 0 without logs."""
    import struct

    from results.reference.files import LAYOUTS

    width = struct.calcsize(LAYOUTS["deliveries"][0])
    return sum(path.stat().st_size for path in run.glob("raw/*/*/deliveries.rec")) // width


def plain_verdict(run: Path) -> PlainVerdict | None:
    """Return the verdict of the plain judge; None if a run has no or too many deliveries.

    Raises:
        Refused: a file has changed since the run ended.
    """
    from results.reference.history_reader import read_history
    from results.reference.rule import check
    from results.rules.verdict_text import counts_in_words, verdict_in_words, with_publisher_names

    if not 0 < logged_deliveries(run) <= MOST_DELIVERIES:
        return None
    began_s = time.monotonic()
    # A row per delivery, and no cycles: to look for garbage takes a tenth of the time.
    gc.disable()
    try:
        history = read_history(run)
        judgement = check(history)
    finally:
        gc.enable()
    counts = counts_in_words(judgement.counts, history.order)
    word = verdict_in_words(judgement.verdict, is_calm=history.calm, brokers=history.brokers)
    text = f"{word}  {history.guarantee} · {counts}"
    names = {log.source: log.name for log in history.publishers}
    because = tuple(with_publisher_names(reason, names) for reason in judgement.because)
    return PlainVerdict(run, judgement, because, text, time.monotonic() - began_s)


def announce_verdicts(
    runs: Sequence[Path], progress: Progress, *, named: bool = False
) -> dict[Path, "Judgement"]:
    """Print the verdicts of the plain judge, and return its judgements by run.

    A run that the plain judge cannot read is left to Spark, which names the reason.

    Args:
        named: begin each verdict with the name of the run.
    """
    found: dict[Path, Judgement] = {}
    for run in runs:
        try:
            verdict = plain_verdict(run)
        except Exception as error:  # any error concerns only this run
            progress.print(f"{run.name}: no verdict of the plain judge: {error}")
            continue
        if verdict is not None:
            first, *others = verdict.lines()
            progress.print(f"{run.name}: {first}" if named else first)
            for line in others:
                progress.print(line)
            found[run] = verdict.judgement
    return found
