"""`compare --selftest`: checks that comparisons on this machine find real differences only.

The figure of a repetition is the processor time per message of a simulated run: always the same
work, with the noise of this machine. A slowed run repeats a tenth of its work.
"""

import gc
import time
from typing import Final

from brokerd.protocols.registry import DEFAULT
from brokerd.simulator.scenario import play_scenario
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import Invocation
from pubsubctl.errors import VerdictUnknown

FIGURE: Final = "least processor time per message of five simulated runs"
_PARTS: Final = 10
_MESSAGES: Final = 2
_TRIES: Final = 5
_PUBLISH: Final = "quietly publish b1 a=1\nquietly run 5ms\n"
_SCENARIO: Final = (
    f"protocol {DEFAULT}\nchain b1 b2 b3\nsubscribe b3 a = 1\nquietly stabilize\n"
    f"{_PUBLISH * _MESSAGES}quietly stabilize\n"
)


def selftest(call: Invocation, trials: int, instances: int) -> Result:
    """Run `trials` trials of each kind, and report if comparisons are reliable here."""
    from results.repetitions.selftest import SCHEMA, SLOWDOWN, Trial, can_be_believed, trial_of

    done: list[Trial] = []
    with call.console.progress() as progress:
        processor_us_per_message(slowed=False)  # a warm-up outside of the measurement
        for planted in (False, True):
            for number in range(1, trials + 1):
                progress.phase(f"trial {len(done) + 1} of {2 * trials}")
                done.append(trial_of(number, planted, instances, _measure))
    rows = [
        (
            f"{trial.number}",
            f"{SLOWDOWN:.0%} slower" if trial.planted else "the same",
            f"{trial.difference.ratio or 0:.3f}",
            f"{trial.difference.low or 0:.3f} … {trial.difference.high or 0:.3f}",
            trial.said,
            "" if trial.is_right else "WRONG",
        )
        for trial in done
    ]
    header = ("TRIAL", "SECOND SERIES IS", "RATIO", "95 % INTERVAL", "SAID", "")
    differ = sum(not trial.is_right for trial in done if not trial.planted)
    found = sum(trial.is_right for trial in done if trial.planted)
    told = (
        f"{differ} of {trials} of the same said to differ, {found} of {trials} slowdowns found "
        f"({instances} runs a side, {FIGURE})"
    )
    document = {
        "schema": SCHEMA, "figure": FIGURE, "instances": instances, "differ": differ,
        "found": found, "trials": [trial.row() for trial in done],
    }  # fmt: skip
    because = () if can_be_believed(done) else (
        VerdictUnknown(f"comparisons cannot be believed on this machine now: {told}"),
    )  # fmt: skip
    return Result(
        document=document, text=f"{call.console.table(header, rows)}\n{told}", because=because
    )


def processor_us_per_message(*, slowed: bool) -> float:
    """Return the processor time of a repetition per message of a normal run, in microseconds.

    The result is the minimum of several tries: disturbance of this machine's caches only adds time.
    """
    gc.collect()
    return min(_tried_ns(_PARTS + slowed) for _ in range(_TRIES)) / 1000 / (_PARTS * _MESSAGES)


def _tried_ns(parts: int) -> int:
    began_ns = time.process_time_ns()
    for _ in range(parts):
        play_scenario(_SCENARIO)
    return time.process_time_ns() - began_ns


def _measure(slowed: bool) -> float:
    return processor_us_per_message(slowed=slowed)
