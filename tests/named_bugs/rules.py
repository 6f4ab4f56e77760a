"""Mistakes in the rules that verdicts go by: what is owed, at risk, excused, and what it comes to."""

from typing import Final

from results.rules.risks import risk_windows, surely_holds
from results.rules.terms import Guarantee
from results.rules.verdicts import decide, doubts_about_faults
from tests.helpers.planted_stories import Row
from tests.results.test_risks import fault

_RISKS: Final = "results/rules/risks.py"
_VERDICTS: Final = "results/rules/verdicts.py"
_EXPECTATION: Final = "results/rules/expectation.py"
_WITNESSES: Final = "results/witnesses"
_LIE: Final = "tests/results/test_false_witnesses.py::test_a_lie_alone_is_found_out"
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
        "fences-anywhere",
        f"{_WITNESSES}/sources.py",
        "        if found != wanted:",
        "        if len(found) != len(wanted):",
        _LIE,
        {"name": "the_opening_fence_is_logged_later"},
    ),
    Row(
        "host-stamps-of-faults-not-compared",
        f"{_WITNESSES}/faults.py",
        """if row.get(f"t_{stage}_ns") != line.get("t_ns"):""",
        "if not row and not line:",
        _LIE,
        {"name": "kill_was_planned_earlier"},
    ),
    Row(
        "frozen-brokers-may-count-on",
        f"{_WITNESSES}/brokers.py",
        'if row["verb"] not in _STOPS:',
        'if row["verb"] not in _KILLS:',
        _LIE,
        {"name": "a_frozen_broker_counts_on"},
    ),
    Row(
        "silence-of-brokers-unheard",
        f"{_WITNESSES}/brokers.py",
        "_TIMES_AS_LONG * usual_ns)",
        "100 * usual_ns)",
        _LIE,
        {"name": "a_broker_stops_counting"},
    ),
    Row(
        "frozen-brokers-may-deliver",
        f"{_WITNESSES}/passage.py",
        "elif verb in _STOPS:",
        "elif verb in _KILLS:",
        _LIE,
        {"name": "a_frozen_broker_delivers"},
    ),
    Row(
        "absent-subscribers-may-receive",
        f"{_WITNESSES}/passage.py",
        """lambda source, subscription: subscription.partition("/")[0] == client,""",
        "lambda source, subscription: subscription == client,",
        _LIE,
        {"name": "an_absent_subscriber_receives"},
    ),
    Row(
        "promises-believed",
        f"{_WITNESSES}/promises.py",
        "if found != value or type(found) is not type(value):",
        "if found is None:",
        _LIE,
        {"name": "the_manifest_promises_no_order"},
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
)
