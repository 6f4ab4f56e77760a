"""The fast path and the general path produce identical histories."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from unittest.mock import patch

import pytest

from brokerd.model.identity import Peer
from brokerd.model.publication import PublicationRun
from brokerd.protocols.delta_tree import forwarding
from brokerd.protocols.delta_tree.fast_path import FastPath
from brokerd.protocols.delta_tree.forwarding import Publications
from brokerd.protocols.delta_tree.queue_entries import Receipt
from brokerd.protocols.delta_tree.routing_table import Audience
from brokerd.protocols.interface import MessageReceived
from brokerd.protocols.parts.selection import match_run
from brokerd.simulator.search.seed_report import SeedReport
from brokerd.simulator.search.swarm import run_seed

SEEDS = (8, 12, 26)
"""Seeds that use the fast path most, with crashes, cuts and late subscriptions."""


@contextmanager
def only_the_general_way() -> Iterator[None]:
    """Disable the fast path."""
    with patch.object(FastPath, "handle", lambda lane, event: False):
        yield


@cache
def lived_the_general_way(seed: int) -> SeedReport:
    """Run a seed of the swarm without the fast path."""
    with only_the_general_way():
        return run_seed(seed, "delta_tree")


def history(report: SeedReport) -> tuple[object, ...]:
    """Return the digest, the counters and the violations of a report."""
    return report.digest, report.counters, report.violations


@pytest.mark.parametrize("seed", SEEDS)
def test_with_and_without_the_lane_a_swarm_lives_through_the_same(seed: int) -> None:
    taken: list[bool] = []
    take = FastPath.handle

    def counting(lane: FastPath, event: MessageReceived) -> bool:
        taken.append(take(lane, event))
        return taken[-1]

    with patch.object(FastPath, "handle", counting):
        straight = run_seed(seed, "delta_tree")
    general = lived_the_general_way(seed)
    assert history(straight) == history(general), f"seed {seed}"
    assert sum(taken) > 100, f"{sum(taken)} of {len(taken)} publications went straight"
    assert sum(taken) < len(taken), "nothing was left to the general way"


def test_a_lane_that_never_forgets_has_another_history() -> None:
    general = lived_the_general_way(SEEDS[1])
    with patch.object(FastPath, "clear", lambda lane: None):
        stubborn = run_seed(SEEDS[1], "delta_tree")
    assert history(stubborn) != history(general)


def test_the_general_path_matches_each_run_once_in_any_division() -> None:
    """Duplicates are removed from the front, and subscriptions may start within the run."""
    matched: list[PublicationRun] = []
    parts: list[int] = []
    receive, queue_up = Publications._receive, Publications._queue_up

    def receiving(here: Publications, run: PublicationRun, receipt: Receipt) -> None:
        matched.clear()
        receive(here, run, receipt)
        assert matched == [run]

    def matching(memo: object, run: PublicationRun, peer: Peer) -> list[Audience]:
        matched.append(run)
        found: list[Audience] = match_run(memo, run, peer)  # type: ignore[arg-type]
        return found

    def queueing(
        here: Publications, run: PublicationRun, audiences: list[Audience], receipt: Receipt
    ) -> None:
        memo = here._table.memo
        assert audiences == [memo.match(blob) for blob in run.attribute_table]
        parts.append(len(run) - receipt.last + receipt.first - 1)
        queue_up(here, run, audiences, receipt)

    with (
        only_the_general_way(),
        patch.object(Publications, "_receive", receiving),
        patch.object(Publications, "_queue_up", queueing),
        patch.object(forwarding, "match_run", matching),
    ):
        run_seed(SEEDS[0], "delta_tree")
    assert len(parts) > 100
    assert any(parts), "no run was cut"
