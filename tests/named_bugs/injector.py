"""Mistakes in the injector: its guard, the order of steps, healing, and what its log says."""

from typing import Final

from tests.fault_injection.test_schedule import step
from tests.helpers.planted_stories import Row

_INJECTOR: Final = "fault_injection/apply/injector.py"
_LOG: Final = "fault_injection/apply/log.py"
_GUARD: Final = "fault_injection/schedule/guard.py"
_LINT: Final = "fault_injection/schedule/lint.py"

ROWS: Final = (
    Row(
        "guard-forgets-what-it-is-about-to-do",
        _INJECTOR,
        "failing = [*self._failed, progress]",
        "failing = [*self._failed]",
        "tests/fault_injection/test_injector.py::test_no_more_elements_fail_at_once_than_the_guard_allows",
    ),
    Row(
        "guard-counts-links-of-failed-brokers",
        _GUARD,
        "return [each for each in whole if not any(each > other for other in whole)]",
        "return [*whole]",
        "tests/fault_injection/test_schedule.py::test_more_than_delta_at_once_is_found_where_the_times_can_meet",
        {
            "other": step(after='"a.applied"', do='"cut"', on='"b1-s1"', for_='"1s"'),
            "severity": [],
        },
    ),
    Row(
        "works-again-once-it-is-started",
        _INJECTOR,
        '            self._log.note(ended.fault.fault_id, "healed", applied_ns, evidence, "schedule", stamps)\n',
        '            self._log.note(ended.fault.fault_id, "healed", applied_ns, evidence, "schedule", stamps)\n'
        "            self._works_again(ended)\n",
        "tests/fault_injection/test_injector.py::test_absorb_kill_restart_happen_in_order_and_nothing_is_released",
    ),
    Row(
        "active-once-it-is-answered",
        _INJECTOR,
        "        progress.is_active = step.verb in LASTING_VERBS\n"
        "        if step.verb in FAILING_VERBS:\n"
        "            self._failed.append(progress)\n"
        "        evidence = await self._backend.apply(fault, self._lease_ns)\n",
        "        evidence = await self._backend.apply(fault, self._lease_ns)\n"
        "        progress.is_active = step.verb in LASTING_VERBS\n"
        "        if step.verb in FAILING_VERBS:\n"
        "            self._failed.append(progress)\n",
        "tests/fault_injection/test_injector.py::test_a_lasting_fault_whose_answer_got_lost_is_undone_at_once",
    ),
    Row(
        "healing-can-be-interrupted",
        _INJECTOR,
        "            with trio.CancelScope(shield=True):\n",
        "            with trio.CancelScope():\n",
        "tests/fault_injection/test_injector.py::test_an_interruption_at_any_moment_leaves_no_fault_behind",
        {"until_s": 8.5},
    ),
    Row(
        "healed-once-it-is-asked-for",
        _INJECTOR,
        "gone = await self._backend.verify_undone(fault)",
        "gone = undone",
        "tests/fault_injection/test_injector.py::test_a_fault_that_its_host_says_it_undid_is_not_believed_until_it_is_seen_to_be_gone",
    ),
    Row(
        "heals-once",
        _INJECTOR,
        "        while self._clock_ns() < requested_ns + _HEAL_WITHIN_NS:",
        "        for _ in range(1):",
        "tests/fault_injection/test_injector.py::test_a_fault_that_its_host_says_it_undid_is_not_believed_until_it_is_seen_to_be_gone",
    ),
    Row(
        "lease-renewed-when-it-is-over",
        _INJECTOR,
        "        wait_s = self._lease_ns / 3e9\n        while True:\n",
        "        wait_s = self._lease_ns / 1e9\n        while True:\n",
        "tests/fault_injection/test_injector.py::test_a_renewal_without_answer_is_tried_again_before_the_lease_ends",
    ),
    Row(
        "silence-ends-a-lease",
        _INJECTOR,
        '                if error.kind != "user":\n',
        '                if error.kind == "internal":\n',
        "tests/fault_injection/test_injector.py::test_a_renewal_without_answer_is_tried_again_before_the_lease_ends",
    ),
    Row(
        "absorb-released-before-its-kill",
        _INJECTOR,
        "            if step.ended_by:\n"
        '                ended_ns = await self._progress[step.ended_by].wait("applied")\n',
        "",
        "tests/fault_injection/test_injector.py::test_absorb_kill_restart_happen_in_order_and_nothing_is_released",
    ),
    Row(
        "anchored-at-what-was-planned",
        _INJECTOR,
        "return reached_ns + step.delay_ns",
        'return self._progress[name].reached["applied"] + step.delay_ns',
        "tests/fault_injection/test_injector.py::test_absorb_kill_restart_happen_in_order_and_nothing_is_released",
    ),
    Row(
        "any-exit-will-do",
        _INJECTOR,
        'if step.exit_signal is not None and seen.get("exit_signal") != step.exit_signal:',
        'if step.exit_signal is not None and seen.get("exit_signal") is None:',
        "tests/fault_injection/test_injector.py::test_a_kill_recorded_with_another_signal_did_not_land",
    ),
    Row(
        "stamped-when-answered",
        _INJECTOR,
        'return int(evidence.pop("t_ns", self._clock_ns())), stamps',
        'evidence.pop("t_ns", None)\n        return self._clock_ns(), stamps',
        "tests/fault_injection/test_stamps_and_counts.py::test_a_fault_holds_from_when_it_was_applied_though_the_answer_is_late",
    ),
    Row(
        "applied-and-failed-is-failed",
        _LOG,
        'row["state"] = "failed" if row["t_applied_ns"] is None else "unknown"',
        'row["state"] = "failed"',
        "tests/fault_injection/test_injector.py::test_a_kill_recorded_with_another_signal_did_not_land",
    ),
    Row(
        "later-stages-make-it-known-again",
        _LOG,
        'if row["state"] not in ("failed", "unknown") and stage in _PROGRESS:',
        "if stage in _PROGRESS:",
        "tests/fault_injection/test_injector.py::test_a_lasting_fault_whose_answer_got_lost_is_undone_at_once",
    ),
    Row(
        "absorbed-added-up-twice",
        _LOG,
        "row[column] = max(row[column] or 0, evidence[key])",
        "row[column] = (row[column] or 0) + evidence[key]",
        "tests/fault_injection/test_stamps_and_counts.py::test_what_is_seen_again_is_not_added_to_what_was_seen",
    ),
    Row(
        "log-stays-in-memory",
        _LOG,
        "            self._file.flush()\n",
        "",
        "tests/fault_injection/test_stamps_and_counts.py::test_a_line_can_be_read_before_what_follows_it_is_done",
    ),
    Row(
        "killed-broker-works-once-it-is-started",
        _LINT,
        'end = (restart.id, "recovered") if restart else NEVER',
        'end = (restart.id, "applied") if restart else NEVER',
        "tests/fault_injection/test_schedule.py::test_more_than_delta_at_once_is_found_where_the_times_can_meet",
        {
            "other": step(after='"r.applied"', do='"freeze"', on='"b3"', for_='"1s"'),
            "severity": ["error"],
        },
    ),
    Row(
        "shared-draw-counts-twice",
        _LINT,
        "common = next(moment for moment in chain if moment in other)",
        "common = ORIGIN",
        "tests/fault_injection/test_schedule.py::test_the_demo_fits_in_a_minute_and_never_breaks_two_things_at_once",
    ),
    Row(
        "delta-itself-is-too-many",
        _GUARD,
        "return len(together) > self._limit",
        "return len(together) >= self._limit",
        "tests/fault_injection/test_injector.py::test_a_fault_that_lasts_is_healed_at_the_end_of_its_time_and_seen_to_recover",
    ),
    Row(
        "nft-takes-neighbours-for-others",
        "fault_injection/apply/separations.py",
        "if not same or third == other or other not in around(third):",
        "if not same or third == other or other in around(third):",
        "tests/fault_injection/test_stamps_and_counts.py::test_nft_parts_two_brokers_unless_a_third_at_their_address_would_be_parted_too",
    ),
    Row(
        "lease-over-at-one-end-is-over",
        "fault_injection/apply/injector.py",
        "        undone, left = await self._undo(progress.fault)\n",
        "        undone, left = {}, ''\n",
        "tests/fault_injection/test_two_ends.py"
        "::test_a_lease_that_is_over_at_one_end_ends_the_fault_at_all",
        {"verb": "cut", "host": "near"},
    ),
    Row(
        "undone-where-one-end-answers",
        "fault_injection/apply/deployed.py",
        "        gone = await on_all(self._ends(fault), is_gone)\n"
        '        return {"gone": True} if all(gone) else None\n',
        "        gone = await on_all(self._ends(fault), is_gone)\n"
        '        return {"gone": True} if any(gone) else None\n',
        "tests/fault_injection/test_two_ends.py::test_an_effect_at_one_end_alone_is_not_seen",
        {"verb": "absorb"},
    ),
    Row(
        "effect-without-one-end",
        "fault_injection/apply/effects.py",
        "        if own is None:\n            return None\n",
        "        if own is None:\n            continue\n",
        "tests/fault_injection/test_two_ends.py::test_an_effect_at_one_end_alone_is_not_seen",
        {"verb": "blackhole"},
    ),
)
