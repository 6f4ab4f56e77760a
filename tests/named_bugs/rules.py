"""Mistakes in the rules that verdicts go by: what is owed, at risk, excused, and what it comes to."""

from typing import Final

from results.rules.risks import risk_windows, surely_holds
from results.rules.terms import Guarantee
from results.rules.verdicts import decide, doubts_about_faults
from tests.helpers.planted_stories import Row
from tests.results.test_risks import fault
from tests.results.test_witnesses import by_spark

_RISKS: Final = "results/rules/risks.py"
_VERDICTS: Final = "results/rules/verdicts.py"
_EXPECTATION: Final = "results/rules/expectation.py"
_WITHHELD: Final = "results/rules/withheld.py"

ROWS: Final = (
    Row(
        "ender-need-not-strike-as-much",
        _RISKS,
        "if other.verb in ends and other.struck >= fault.struck)",
        "if other.verb in ends and other.struck & fault.struck)",
        "tests/results/test_both_judges.py::test_a_fault_is_ended_by_what_strikes_all_of_it_and_not_after_it_is_healed",
        {"windows_of": risk_windows},
    ),
    Row(
        "churn-puts-others-at-risk",
        "results/rules/churn.py",
        '(f"client:{subscriber}",), err_ns,',
        '("s1",), err_ns,',
        "tests/results/test_churn.py::test_an_absence_is_of_one_subscriber",
    ),
    Row(
        "restart-opens-a-window",
        _RISKS,
        'if fault.verb == "restart" or fault.fault_id in enders:',
        "if fault.fault_id in enders:",
        "tests/results/test_risks.py::test_when_something_is_at_risk",
        {
            "faults": [fault("1", "kill", 2), fault("2", "restart", 7)],
            "windows": [("1+2", 2, 7, "release")],
        },
    ),
    Row(
        "window-ends-with-the-heal-of-a-dead-broker",
        _RISKS,
        "if end is not None and end.applied_ns is not None and end.applied_ns <= healed_ns:",
        "if end is not None and end.applied_ns is not None and healed_ns == NEVER_NS:",
        "tests/results/test_both_judges.py::test_a_fault_is_ended_by_what_strikes_all_of_it_and_not_after_it_is_healed",
        {"windows_of": risk_windows},
    ),
    Row(
        "directions-alike",
        _RISKS,
        'on_the_way |= {f"{a}->{b}", f"{a}-{b}", f"{b}-{a}"}',
        'on_the_way |= {f"{a}->{b}", f"{b}->{a}", f"{a}-{b}", f"{b}-{a}"}',
        "tests/results/test_risks.py::test_paths_run_through_brokers_links_and_directed_links",
    ),
    Row(
        "clocks-agree",
        _RISKS,
        "return window.from_ns + window.err_ns, window.to_ns - window.err_ns",
        "return window.from_ns, window.to_ns",
        "tests/results/test_both_judges.py::test_what_clocks_leave_open_is_not_surely_at_risk",
        {"is_in": surely_holds},
    ),
    Row(
        "unknown-error-is-none",
        _RISKS,
        "return NEVER_NS if fault.err_ns is None else fault.err_ns",
        "return fault.err_ns or 0",
        "tests/results/test_risks.py::test_where_nobody_compared_the_clocks_nothing_is_surely_at_risk",
    ),
    Row(
        "roaming-client-at-its-home",
        _RISKS,
        "            places.append(roam.to)\n",
        "",
        "tests/results/test_both_judges.py::test_who_roams_is_at_risk_where_both_of_its_ways_lead_through",
    ),
    Row(
        "at-least-once-forgives-loss",
        _VERDICTS,
        'return guarantee.delivery != "at-most-once" or guarantee.gapless',
        'return guarantee.delivery == "exactly-once"',
        "tests/results/test_reference_check.py::test_a_run_is_judged_against_what_its_workload_asks_for",
        {
            "guarantee": Guarantee("at-least-once"),
            "violations": {"missing": 1},
            "verdict": "INVALID",
        },
    ),
    Row(
        "order-of-total-only",
        _VERDICTS,
        'return violation not in _DISORDERS or guarantee.order != "none"',
        'return violation not in _DISORDERS or guarantee.order == "total"',
        "tests/results/test_both_judges.py::test_order_counts_where_any_is_asked_for",
        {"decide": decide},
    ),
    Row(
        "valid-in-spite-of-doubts",
        _VERDICTS,
        "    if doubts:\n        return",
        "    if doubts and not counts.owed:\n        return",
        "tests/results/test_both_judges.py::test_a_doubt_leaves_open_what_is_not_proven",
        {"decide": decide},
    ),
    Row(
        "unobserved-fault-is-believed",
        _VERDICTS,
        "if fault.applied_ns is None or fault.observed_ns is None:",
        "if fault.applied_ns is None:",
        "tests/results/test_both_judges.py::test_a_fault_is_believed_when_it_was_applied_and_then_seen",
        {"doubts": doubts_about_faults},
    ),
    Row(
        "missing-attribute-differs",
        _EXPECTATION,
        "        if self.attribute not in attributes:\n            return False\n",
        '        if self.attribute not in attributes:\n            return self.kind == "!="\n',
        "tests/results/test_expectation.py::test_what_the_rules_say",
        {"text": "price != 100", "attributes": {}, "holds": False},
    ),
    Row(
        "not-of-and-stays-and",
        _EXPECTATION,
        'return all(results) if (self.kind == "and") != negated else any(results)',
        'return all(results) if self.kind == "and" else any(results)',
        "tests/results/test_expectation.py::test_what_the_rules_say",
        {
            "text": "not (price > 1 and symbol = 'a')",
            "attributes": {"price": 0, "symbol": "a"},
            "holds": True,
        },
    ),
    Row(
        "true-is-one",
        _EXPECTATION,
        "if isinstance(value, bool | str):",
        "if isinstance(value, str):",
        "tests/results/test_expectation.py::test_both_readings_of_the_predicate_rules_agree",
    ),
    Row(
        "keys-in-order-of-their-text",
        _EXPECTATION,
        "pairs = sorted((_encode(name), _encode(value)) for name, value in attributes.items())",
        "pairs = [(_encode(name), _encode(attributes[name])) for name in sorted(attributes)]",
        "tests/results/test_expectation.py::test_contents_are_those_the_load_generator_prepares",
    ),
    Row(
        "guarantee-of-the-promise",
        "results/rules/terms.py",
        "return replace(self, order=promises.order) if self.order == PROMISED else self",
        "return replace(self, order=promises.order)",
        "tests/results/test_witnesses.py::test_a_guarantee_names_the_order_that_is_checked",
        {},
    ),
    Row(
        "busy-excuses-everything",
        "results/rules/verdicts.py",
        'return {*broken} <= {"missing", "fence_missing"} and sum',
        "return sum",
        "tests/results/test_busy_machine.py::test_signs_excuse_what_was_outstanding_and_nothing_else",
        {"decide": decide},
    ),
    Row(
        "busy-excuses-holes",
        "results/rules/verdicts.py",
        " and sum(broken.values()) == counts.outstanding",
        "",
        "tests/results/test_busy_machine.py::test_signs_excuse_what_was_outstanding_and_nothing_else",
        {"decide": decide},
    ),
    Row(
        "schedule-without-a-phase",
        "results/witnesses/timing.py",
        "return phase_ns + whole * step",
        "return whole * step",
        "tests/results/test_witnesses.py::test_both_judges_know_when_publications_are_due",
        {"worked_out": by_spark},
    ),
    Row(
        "lateness-believed",
        "results/witnesses/timing.py",
        "if late > 0.01 * len(rows) + 1:",
        "if late > len(rows):",
        "tests/results/test_contradictions.py::test_each_is_doubted_by_name",
        {"name": "a_tenth_was_late"},
    ),
    Row(
        "sent-before-it-was-due",
        "results/witnesses/timing.py",
        'if (early := int((mine["sent_ns"] < mine["intended_ns"]).sum())) > 0:',
        'if (early := int((mine["sent_ns"] < 0).sum())) > 0:',
        "tests/results/test_contradictions.py::test_each_is_doubted_by_name",
        {"name": "sent_before_it_was_due"},
    ),
    Row(
        "stretches-wherever",
        "results/witnesses/timing.py",
        '    if level == "full":\n        yield',
        '    if level == "none":\n        yield',
        "tests/results/test_contradictions.py::test_each_is_doubted_by_name",
        {"name": "stretches_where_none_may_be"},
    ),
    Row(
        "drains-of-any-length",
        "results/witnesses/timing.py",
        "if isinstance(took_s, int | float) and took_s * SECOND_NS > lasted_ns + SLACK_NS:",
        "if isinstance(took_s, str):",
        "tests/results/test_contradictions.py::test_each_is_doubted_by_name",
        {"name": "a_drain_outlasts_its_phase"},
    ),
    Row(
        "digest-where-there-is-one",
        "results/witnesses/specification.py",
        "        if digest is None and is_needed:",
        "        if digest is None and not is_needed:",
        "tests/results/test_contradictions.py::test_each_is_doubted_by_name",
        {"name": "the_journal_forgets"},
    ),
    Row(
        "promises-of-the-manifest",
        "results/witnesses/specification.py",
        'if promised is not None and promised != run.manifest.get("promises"):',
        'if promised is None and run.manifest.get("promises") == 0:',
        "tests/results/test_contradictions.py::test_each_is_doubted_by_name",
        {"name": "less_was_promised"},
    ),
    Row(
        "any-word-is-a-guarantee",
        "results/tables/specification.py",
        "        elif value not in allowed:\n",
        "        elif value not in allowed and not isinstance(value, str):\n",
        "tests/results/test_contradictions.py::test_each_is_doubted_by_name",
        {"name": 'unreadable: order = "publishr"'},
    ),
    Row(
        "sample-beyond-its-size",
        "results/checker/second_opinion.py",
        "            if rows_of(*wider) <= MOST_ROWS:",
        "            if len(wider[0]) <= MOST_ROWS:",
        "tests/results/test_second_opinion.py::test_a_sample_is_drawn_by_the_run_and_as_large_as_can_be_judged",
        {},
    ),
)
