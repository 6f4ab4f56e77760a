"""Publications that wait for links that stay down, for the command line."""

from typing import Any

from bench.papers.dft11.stalls import Stalls, count_stalls, total_stalls
from pubsubctl.console.console import Result, grouped
from pubsubctl.console.invocation import Invocation
from pubsubctl.errors import VerdictInvalid

DELTAS = (1, 2, 3)


def simulate_stalls(call: Invocation, first: int, last: int) -> Result:
    """Run the same stories without and with relayed sessions, for each δ."""
    rows: list[dict[str, Any]] = []
    waiting: list[Stalls] = []
    with call.console.progress() as progress:
        progress.phase("counting publications that wait for links")
        for delta in DELTAS:
            for assist in ("off", "on"):
                stories = []
                for seed in range(first, last + 1):
                    stories.append(count_stalls(seed, delta, assist))
                    progress.update({"delta": delta, "assist": assist, "seed": seed})
                rows.append({"delta": delta, "assist": assist, **total_stalls(stories)})
                waiting += [story for story in stories if assist == "on" and story.stalled]
    header = ("δ", "ASSIST", "STORIES", "LINKS DOWN", "OWED", "NOT DELIVERED", "GATES CLOSED")
    cells = [
        (
            str(row["delta"]),
            row["assist"],
            grouped(row["stories"]),
            grouped(row["links"]),
            grouped(row["owed"]),
            grouped(row["missing"]),
            grouped(row["closed"]),
        )
        for row in rows
    ]
    return Result(
        document={"schema": "pubsubctl/stalls/1", "seeds": [first, last], "rows": rows},
        text=call.console.table(header, cells),
        because=tuple(
            VerdictInvalid(f"δ = {story.delta}, seed {story.seed}: waits for {story.broken}")
            for story in waiting[:20]
        ),
    )
