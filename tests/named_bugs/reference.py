"""Mistakes in the plain checker, which judges small runs beside Spark's."""

from typing import Final

from results.reference.risk import times_of_risk, was_surely_sent_in
from results.reference.verdict import decide
from tests.helpers.histories import MUTATIONS
from tests.helpers.planted_stories import Row

_RULE: Final = "results/reference/rule.py"
_RISK: Final = "results/reference/risk.py"
_VERDICT: Final = "results/reference/verdict.py"

_GAPS: Final = (
    "tests/results/test_promises.py::test_what_is_not_promised_is_named_and_what_is_promised_is_not"
)

ROWS: Final = (
    Row(
        "gap-of-a-loss-needs-no-act",
        _RULE,
        "            if accepted_ns is None:\n                return False\n",
        "            if accepted_ns is None:\n                return True\n",
        _GAPS,
        {"name": "a_gap_of_a_loss_is_announced_where_none_is_accepted"},
    ),
    Row(
        "gap-of-a-loss-before-its-act",
        _RULE,
        "accepted_ns <= gap.received_ns + self.error_ns",
        "accepted_ns >= 0",
        _GAPS,
        {"name": "a_gap_of_a_loss_is_announced_before_it_is_accepted"},
    ),
    Row(
        "gap-of-a-loss-must-be-old",
        _RULE,
        "                continue  # of a loss, which is of any age\n",
        "                pass\n",
        _GAPS,
        {"name": "a_gap_of_an_accepted_loss_has_what_is_young"},
    ),
    Row(
        "act-without-a-signature-counts",
        "results/reference/reading.py",
        "                is_signed = len(signature) == 128 and",
        "                is_signed = len(signature) >= 0 and",
        "tests/results/test_promises.py::test_a_gap_for_lost_state_needs_an_operators_act",
    ),
    Row(
        "unanswered-counts-as-lost",
        _RULE,
        "or (key not in self.answered and key in seen)",
        "or key not in self.answered",
        "tests/results/test_reference_check.py::test_what_nobody_wants_may_be_left_undone",
    ),
    Row(
        "rejected-weighs-more",
        _RULE,
        "self.answered[key] = min(outcome, self.answered.get(key, outcome))",
        "self.answered[key] = max(outcome, self.answered.get(key, outcome))",
        "tests/results/test_both_judges.py::test_what_was_acknowledged_and_refused_as_well_is_owed",
    ),
    Row(
        "duplicates-only-side-by-side",
        _RULE,
        "            before = row.key\n",
        "            before = row.key\n            seen = {row.key}\n",
        "tests/results/test_promises.py::test_what_is_not_promised_is_named_and_what_is_promised_is_not",
        {"name": "what_was_not_committed_comes_again_in_a_total_order"},
    ),
    Row(
        "holes-only-between-deliveries",
        _RULE,
        "        if self.source.closing and self.subscription.closed:\n            last.append(self.source.closing)\n",
        "",
        "tests/results/test_reference_check.py::test_without_a_closing_fence_the_end_is_open",
    ),
    Row(
        "beginning-never-missing",
        _RULE,
        "        if self.source.opening and (first or self.subscription.closed):\n            first.append(self.source.opening)\n",
        "",
        "tests/results/test_reference_check.py::test_every_way_to_spoil_a_history_is_caught",
        {"mutation": MUTATIONS["drop_the_first_after_accept"]},
    ),
    Row(
        "content-not-compared",
        _RULE,
        'return "" if row.digest == self.source.digest(publication) else "corrupted"',
        'return ""',
        "tests/results/test_reference_check.py::test_every_way_to_spoil_a_history_is_caught",
        {"mutation": MUTATIONS["payload_corrupted"]},
    ),
    Row(
        "match-taken-from-the-log",
        _RULE,
        "chosen, _ = self.content.choice(self.publisher.index, *publication.key)\n        return",
        "chosen = publication.attribute_set\n        return",
        "tests/results/test_both_judges.py::test_a_log_that_says_other_content_hides_no_loss",
    ),
    Row(
        "reuse-not-looked-for",
        _RULE,
        "for key in sorted(key for key, n in times.items() if n > 1):",
        "for key in sorted(key for key, n in times.items() if n > 2):",
        "tests/results/test_reference_check.py::test_every_way_to_spoil_a_history_is_caught",
        {"mutation": MUTATIONS["sequence_number_used_again"]},
    ),
    Row(
        "any-mark-excuses-a-repetition",
        _RULE,
        "return is_marked and self.promises.redelivers and not self._is_committed(row.key, place)",
        "return is_marked",
        "tests/results/test_promises.py::test_what_is_not_promised_is_named_and_what_is_promised_is_not",
        {"name": "what_comes_again_where_that_is_not_promised"},
    ),
    Row(
        "notice-excuses-for-ever",
        _RULE,
        "if until_ns is None or self.source.by_key[key].sent_ns > until_ns:",
        "if until_ns is None:",
        "tests/results/test_both_judges.py::test_what_was_published_long_after_a_fault_is_not_withheld_for_it",
    ),
    Row(
        "doubt-before-proof",
        _VERDICT,
        "    if proven:\n",
        "    if proven and not doubts:\n",
        "tests/results/test_both_judges.py::test_a_doubt_leaves_open_what_is_not_proven",
        {"decide": decide},
    ),
    Row(
        "nothing-at-risk-is-fine",
        _VERDICT,
        "    if not calm and counts.at_risk == 0:",
        "    if calm and counts.at_risk == 0:",
        "tests/results/test_both_judges.py::test_a_doubt_leaves_open_what_is_not_proven",
        {"decide": decide},
    ),
    Row(
        "risk-ignores-clock-errors",
        _RISK,
        "return window.from_ns + window.err_ns <= sent_ns < window.to_ns - window.err_ns",
        "return window.from_ns <= sent_ns < window.to_ns",
        "tests/results/test_both_judges.py::test_what_clocks_leave_open_is_not_surely_at_risk",
        {"is_in": was_surely_sent_in},
    ),
    Row(
        "kill-restarts-the-window",
        _RISK,
        "            if ender.verb in _ENDS and ender.struck == fault.struck:\n",
        "            if ender.verb in _ENDS:\n",
        "tests/results/test_both_judges.py::test_what_ends_a_fault_has_a_time_of_its_own_where_it_strikes_more",
        {"windows_of": times_of_risk},
    ),
    Row(
        "any-way-at-risk",
        _RISK,
        "return all(self._passing.passed(*pair) & window.parts for pair in pairs)",
        "return any(self._passing.passed(*pair) & window.parts for pair in pairs)",
        "tests/results/test_both_judges.py::test_who_roams_is_at_risk_where_both_of_its_ways_lead_through",
    ),
    Row(
        "totals-of-the-first-two-only",
        "results/reference/ordering.py",
        "both = sorted((one for one in here if one in there), key=here.__getitem__)",
        "both = [one for one in here if one in there][:2]",
        "tests/results/test_promises.py::test_what_is_not_promised_is_named_and_what_is_promised_is_not",
        {"name": "one_source_is_swapped_in_a_total_order"},
    ),
)
