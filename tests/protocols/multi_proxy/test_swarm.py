"""Swarms of multi_proxy: no violations, full coverage of all rules, named bugs found."""

import pytest

from brokerd.simulator.checks.marks import compute_coverage, describe_coverage
from brokerd.simulator.checks.protocol_checks import marks_of
from brokerd.simulator.named_bugs import NamedBug, bugs_of, mistaken_functions
from brokerd.simulator.search.adversary import AdversaryOptions, run_adversary
from brokerd.simulator.search.swarm import SwarmOptions, run_seed
from tests.protocols.multi_proxy.test_access_brokers import RULES as AT_A_HOME
from tests.protocols.multi_proxy.test_arbiter import RULES as AT_AN_ARBITER
from tests.protocols.multi_proxy.test_arbiter_transfers import RULES as WHERE_TOPICS_MOVE
from tests.protocols.multi_proxy.test_causal_ownership import RULES as WITH_MERGES
from tests.protocols.multi_proxy.test_decommissioning import RULES as WHERE_A_HOME_IS_GONE
from tests.protocols.multi_proxy.test_departures import RULES as WHERE_A_CLIENT_LEAVES
from tests.protocols.multi_proxy.test_lossy_servers import RULES as WHERE_STATE_IS_LOST
from tests.protocols.multi_proxy.test_proxy_ownership import RULES as WITH_TWO_OWNERS
from tests.protocols.multi_proxy.test_retention import RULES as WHERE_IT_IS_LET_GO_OF
from tests.protocols.multi_proxy.test_server import RULES as AT_A_SERVER
from tests.protocols.multi_proxy.test_stories import RULES as STORIES
from tests.protocols.multi_proxy.test_version_bounds import FORGED
from tests.protocols.multi_proxy.test_waiting_gets import RULES as WITH_WAITING_GETS

MUTANTS = bugs_of("multi_proxy")
BUGS = tuple(bugs_of("multi_proxy").values())

SEEDS = tuple(seed for seed in range(1, 40) if seed % 16 != 6)
"""Seeds without the long runs, which take ten times as long."""


def test_a_swarm_finds_no_violation_and_reaches_every_mark() -> None:
    reports = [run_seed(seed, "multi_proxy") for seed in SEEDS]
    failed = [(report.seed, report.violations) for report in reports if report.violations]
    assert not failed
    marks = compute_coverage(marks_of("multi_proxy"), reports)
    assert all(row.is_enough for row in marks), describe_coverage(marks)
    assert sum(report.counters["at_risk"] for report in reports) > 500


def test_an_adversary_without_a_clock_breaks_nothing() -> None:
    options = AdversaryOptions(protocol="multi_proxy")
    reports = [run_adversary(seed, options) for seed in range(1, 9)]
    assert not [(report.seed, report.violations) for report in reports if report.violations]


def test_a_swarm_sees_the_canary() -> None:
    options = SwarmOptions(mutants=frozenset(("puts-twice",)), check_purity=False)
    assert any(run_seed(seed, "multi_proxy", options).violations for seed in range(1, 6))


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_row_of_a_bug_fits_the_source(bug: NamedBug) -> None:
    assert mistaken_functions((bug,))


def test_each_bug_has_a_story() -> None:
    """Bugs without a story here are covered by the tests of servers and access brokers."""
    told = {
        *STORIES,
        *AT_A_SERVER,
        *AT_AN_ARBITER,
        *WITH_TWO_OWNERS,
        *WITH_MERGES,
        *WITH_WAITING_GETS,
        *WHERE_IT_IS_LET_GO_OF,
        *WHERE_A_HOME_IS_GONE,
        *WHERE_TOPICS_MOVE,
        *WHERE_A_CLIENT_LEAVES,
        *WHERE_STATE_IS_LOST,
        "waits-although-its-peer-is-there",
        "dials-whatever-its-peer-closes",
        "generations-leap",
        "generations-beyond-the-servers",
        "given-up-on-a-neighbours-word",
        "over-a-hole",
        "begins-for-all",
        "subscription-begins-with-retained-parts",
        *AT_A_HOME,
        *FORGED,
        "chopped-while-it-is-given",
    }
    assert told == {*MUTANTS}
