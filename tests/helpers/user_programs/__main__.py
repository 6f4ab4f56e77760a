"""Run random programs of one protocol, and print the violations and errors."""

import sys
import traceback

from tests.helpers.user_programs.programs import run_seed


def main(protocol: str, first: str, count: str) -> None:
    """Run `count` programs, from the seed `first` on."""
    received = 0
    for seed in range(int(first), int(first) + int(count)):
        try:
            found, deliveries = run_seed(protocol, seed)
        except Exception:
            found, deliveries = [traceback.format_exc(limit=-3)], 0
        received += deliveries
        for text in found:
            sys.stdout.write(f"seed {seed}: {text[-1_200:]}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{protocol}: {count} programs, {received:,} deliveries\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
