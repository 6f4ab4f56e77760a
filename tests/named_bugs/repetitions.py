"""Mistakes in repetitions: what counts as run, which run is typical, what differs from what."""

from typing import Final

from tests.helpers.planted_stories import Row

_SERIES: Final = "tests/bench/test_series.py::"
_STORIES: Final = "tests/results/test_repetitions.py::"

ROWS: Final = (
    Row(
        "claim-passes-a-wrong-system",
        "pubsubctl/running/claims.py",
        "        if self.tolerance.allows(self.wrong.value):\n",
        "        if self.tolerance.allows(self.wrong.value) and self.needs:\n",
        "tests/pubsubctl/test_claims.py::test_a_claim_that_a_wrong_system_passes_cannot_be_made",
    ),
    Row(
        "backlog-counts-as-of-the-phase",
        "bench/run/outcome.py",
        "        if sequence < limit and flags >> 8 & 0xFF == APPLICATION:\n",
        "        if sequence < 0 and flags >> 8 & 0xFF == APPLICATION:\n",
        "tests/bench/test_outcome.py::test_the_backlog_of_the_warm_up_is_counted_apart",
    ),
    Row(
        "numbers-that-are-not-finite-are-read",
        "brokerd/text.py",
        "        if isinstance(value, float) and not math.isfinite(value):\n",
        "        if isinstance(value, float) and math.isnan(value - value) and value == 0:\n",
        "tests/test_toml_text.py::test_a_value_out_of_bounds_is_named",
        {"text": "a = [{ b = nan }]", "complaint": "a[0].b = nan is not a finite number"},
    ),
    Row(
        "a-run-that-was-begun-counts",
        "bench/run/series.py",
        'if instance not in self._ended and state == "complete":',
        "if instance not in self._ended:",
        f"{_SERIES}test_whoever_goes_on_after_a_kill_runs_nothing_twice",
    ),
    Row(
        "the-typical-run-is-the-strangest",
        "results/repetitions/modal.py",
        "return min(sorted(sums), key=lambda name: sums[name])",
        "return max(sorted(sums), key=lambda name: sums[name])",
        f"{_STORIES}test_the_typical_instance_is_the_one_that_is_least_far_from_all",
    ),
    Row(
        "chance-is-called-a-difference",
        "results/repetitions/spread.py",
        "    elif high < 1 or low > 1:\n",
        "    elif ratio < 1 or ratio > 1:\n",
        f"{_STORIES}test_only_what_repetitions_bear_out_is_called_different",
        {"first": [100, 150, 60], "second": [130, 80, 200], "outcome": "cannot tell"},
    ),
    Row(
        "fsync-is-nobodys-business",
        "results/repetitions/comparable.py",
        '            "fsync policy": manifest.get("without_fsync"),\n',
        "",
        f"{_STORIES}test_what_cannot_be_compared_is_refused_with_the_reason",
        {"change": {"manifest": {"without_fsync": ["h"]}}, "reason": "fsync policy"},
    ),
)
