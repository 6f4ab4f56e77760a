"""The table of killed controllers in `results/lab_kills.md`."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Kill:
    """A kill of a command, and its result.

    Attributes:
        after_s: the time of the signal.
        said: the last line before the signal.
        status: the exit status of the process: -9 if the signal killed the process.
        healed_s: the time in which the started work ended.
    """

    verb: str
    after_s: float
    said: str
    status: int
    healed_s: float = 0.0

    def row(self, number: int) -> str:
        """Return the row of the table."""
        return (
            f"| {number} | {self.verb} | {self.after_s:.2f} | {self.said} | {self.healed_s:.1f} "
            "| clean |"
        )


def kills_table(
    seed: int, kills: Sequence[Kill], *, first_lease_s: float, lease_s: float, slack_s: float
) -> str:
    """Return the file; commands that had ended before the kill are listed above the table."""
    head = (
        "# Controllers killed over SSH\n\n"
        f"`make lab-long`, seed {seed}: SIGKILL ends the controller while it works on three test "
        "hosts.\nNo other command runs until everything that it had begun has ended. The test "
        f"requires that within {first_lease_s + slack_s:.0f} s: the longest lease, before all "
        f"agents are reached, is {first_lease_s:.0f} s, and {lease_s:.0f} s after that. Then "
        "`down --verify` runs.\nA `deploy` begins nothing that has to end, because its brokers "
        "stay: its time is that of one check.\n"
    )
    columns = (
        "\n| # | command | killed after (s) | last output | ended by itself after (s) "
        "| `down --verify` |\n|---|---|---|---|---|---|\n"
    )
    too_late = "".join(
        f"Row {number} killed nothing: that `{kill.verb}` had already ended.\n"
        for number, kill in enumerate(kills, start=1)
        if kill.status != -signal.SIGKILL
    )
    rows = "".join(f"{kill.row(number)}\n" for number, kill in enumerate(kills, start=1))
    return head + too_late + columns + rows
