"""Mistakes in the load generator: what it sends when, what it logs and counts, what it judges."""

from typing import Final

from tests.bench.test_online_checker import SOME
from tests.helpers.planted_stories import Row

_PUBLISHING: Final = "bench/load/publishing.py"
_RECEIVING: Final = "bench/load/receiving.py"
_RECORDING: Final = "bench/load/recording.py"
_PROGRESS: Final = "bench/load/stream_progress.py"

ROWS: Final = (
    Row(
        "lateness-since-it-was-sent",
        _PUBLISHING,
        "intended = self._pending[self._pending_from : self._pending_from + count]",
        'intended = array("q", [now_ns]) * count',
        "tests/bench/test_publishing.py::test_while_there_is_no_session_the_schedule_goes_on",
    ),
    Row(
        "window-ignores-what-is-under-way",
        _PUBLISHING,
        "within_window = self.setting.window - client.outstanding",
        "within_window = self.setting.window",
        "tests/bench/test_publishing.py::test_at_rate_max_the_window_is_kept_full_in_batches",
    ),
    Row(
        "sent-before-its-number-is-on-disk",
        _PUBLISHING,
        "return min(within_window, self.reserved - client.next_sequence + 1)",
        "return within_window",
        "tests/bench/test_publishing.py::test_nothing_is_handed_over_before_its_number_is_reserved_on_disk",
    ),
    Row(
        "one-number-short-of-what-is-reserved",
        _PUBLISHING,
        "return min(within_window, self.reserved - client.next_sequence + 1)",
        "return min(within_window, self.reserved - client.next_sequence)",
        "tests/bench/test_publishing.py::test_nothing_is_handed_over_before_its_number_is_reserved_on_disk",
    ),
    Row(
        "warm-up-in-the-measured-lateness",
        _PUBLISHING,
        "            if intended >= self.measure_from_ns:\n",
        "            if now_ns >= self.measure_from_ns:\n",
        "tests/bench/test_publishing.py::test_lateness_is_of_the_measure_phase_by_when_it_was_due",
    ),
    Row(
        "blocked-time-forgets-the-beginning",
        _PUBLISHING,
        "        if blocked and not self._blocked_since:\n",
        "        if blocked:\n",
        "tests/bench/test_publishing.py::test_who_is_blocked_is_so_from_the_first_that_could_not_go",
    ),
    Row(
        "payload-of-the-block-not-of-the-number",
        _PUBLISHING,
        "payload = memoryview(content.payload_of(block))[low * size : (low + count) * size]",
        "payload = memoryview(content.payload_of(block))[: count * size]",
        "tests/bench/test_publishing.py::test_each_run_carries_the_payloads_of_its_own_numbers",
    ),
    Row(
        "first-attribute-set-for-all",
        _RECORDING,
        "        rows[28::ROW_BYTES] = sets  # an array",
        "        rows[28::ROW_BYTES] = sets[:1] * count  # an array",
        "tests/bench/test_publishing.py::test_what_is_sent_is_what_the_seed_says_and_the_log_says_so",
    ),
    Row(
        "fence-marked-one-late",
        _RECORDING,
        "        rows[ROW_BYTES * position + 28] = FENCE\n",
        "        rows[ROW_BYTES * (position - 1) + 28] = FENCE\n",
        "tests/bench/test_receiving.py::test_the_rows_of_a_long_run_are_of_its_publications_one_by_one",
    ),
    Row(
        "what-matched-in-blocks-before-forgotten",
        "bench/load/matching_sequences.py",
        "return self._before[number] + bisect_right(",
        "return bisect_right(",
        "tests/bench/test_matching_sequences.py"
        "::test_how_many_match_between_two_numbers_is_as_if_each_were_asked",
    ),
    Row(
        "quotient-one-too-small",
        "bench/load/splitmix.py",
        "return remaining[::_LANE_BYTES].translate(_remainders(divisor))",
        "return remaining[::_LANE_BYTES]",
        "tests/bench/test_content.py::test_choices_of_a_block_are_those_of_its_numbers",
    ),
    Row(
        "waiting-for-a-core-is-idling",
        "bench/run/limits.py",
        "could_s = max(took_s - (after.waited_s - before.waited_s), ran_s, 1e-9)",
        "could_s = max(took_s, ran_s, 1e-9)",
        "tests/bench/test_limits.py"
        "::test_who_had_to_wait_for_a_core_is_the_limit_by_what_it_could_have",
    ),
    Row(
        "incarnation-not-recorded",
        _RECORDING,
        "        0, received_ns, 0, subscription, publisher, incarnation, kind, layer, 0\n",
        "        0, received_ns, 0, subscription, publisher, 0, kind, layer, 0\n",
        "tests/bench/test_receiving.py::test_the_rows_of_a_long_run_are_of_its_publications_one_by_one",
    ),
    Row(
        "last-of-a-notice-left-out",
        _RECORDING,
        "min(last - start + 1, _LONGEST)",
        "min(last - start, _LONGEST)",
        "tests/bench/test_recording.py::test_notice_rows_are_one_per_stretch_however_long_it_is",
    ),
    Row(
        "withheld-recorded-as-delivered",
        _RECEIVING,
        "self._write_run(stream, run, received_ns, WIRE, examined)",
        "self._write_run(stream, run, received_ns, APPLICATION, examined)",
        "tests/bench/test_receiving.py::test_what_the_library_keeps_back_is_a_row_of_another_layer",
    ),
    Row(
        "commit-of-everything-so-far",
        _RECEIVING,
        'self._write("commits", self._line(stream, first, last, committed_ns))',
        'self._write("commits", self._line(stream, 1, last, committed_ns))',
        "tests/bench/test_receiving.py::test_a_commit_says_from_where_it_goes",
    ),
    Row(
        "strangers-not-counted",
        _RECEIVING,
        "            self.checker.foreign += len(run)\n",
        "            pass\n",
        "tests/bench/test_receiving.py::test_what_comes_of_a_source_of_nobody_here_is_counted",
    ),
    Row(
        "late-fill-is-a-duplicate",
        _PROGRESS,
        "        elif not self._fill(sequence):\n",
        "        elif True:\n",
        "tests/bench/test_online_checker.py::test_a_mutated_history_is_found_out",
        {"predicate": SOME, "mutation": "swap", "seed": 0},
    ),
    Row(
        "hole-never-filled",
        _PROGRESS,
        "rest = [(first, sequence - 1), (sequence + 1, last)]",
        "rest = [(first, last)]",
        "tests/bench/test_online_checker.py::test_a_mutated_history_is_found_out",
        {"predicate": SOME, "mutation": "swap", "seed": 0},
    ),
    Row(
        "quick-way-past-a-known-fence",
        _PROGRESS,
        "            and not self._fences_between(high, sequences[-1])\n",
        "",
        "tests/bench/test_receiving.py::test_a_known_fence_that_is_passed_over_is_missed",
    ),
    Row(
        "quick-way-past-corruption",
        _PROGRESS,
        "            and not content.corrupted\n",
        "",
        "tests/bench/test_receiving.py::test_corruption_is_counted_in_the_middle_of_a_stream_too",
    ),
    Row(
        "end-never-missing",
        _PROGRESS,
        "is_absent = fence > self.counts.high or self._holes.place_of(fence) is not None",
        "is_absent = self._holes.place_of(fence) is not None",
        "tests/bench/test_online_checker.py::test_a_mutated_history_is_found_out",
        {"predicate": SOME, "mutation": "drop the tail", "seed": 0},
    ),
    Row(
        "given-up-is-a-duplicate",
        _PROGRESS,
        "        self._given_up -= 1\n        return True\n",
        "        return False\n",
        "tests/bench/test_online_checker.py::"
        "test_what_comes_behind_holes_that_were_given_up_is_not_said_to_have_come_twice",
    ),
    Row(
        "given-up-is-no-hole",
        _PROGRESS,
        "return self._given_up > 0 or any(",
        "return any(",
        "tests/bench/test_online_checker.py::"
        "test_a_fence_is_out_while_something_that_was_given_up_is",
    ),
    Row(
        "quantile-of-the-bucket-before",
        "bench/load/pacing.py",
        "            if seen >= share * self.total:\n",
        "            if seen > share * self.total:\n",
        "tests/bench/test_pacing.py::test_quantiles_are_those_of_the_sorted_list_to_within_a_sixteenth",
    ),
    Row(
        "wakes-a-moment-early",
        "bench/load/pacing.py",
        "        if at_ns <= time.monotonic_ns():\n",
        "        if at_ns <= time.monotonic_ns() + 1_000_000:\n",
        "tests/bench/test_pacing.py::test_an_alarm_can_be_given_up_and_set_again",
    ),
    Row(
        "churn-reaches-beyond-the-measurement",
        "bench/spec/workload.py",
        "(from_ns, min(from_ns + disconnected_ns, duration_ns))",
        "(from_ns, from_ns + disconnected_ns)",
        "tests/bench/test_churn.py::test_nobody_is_away_when_the_measurement_ends",
    ),
    Row(
        "churn-all-at-once-whatever-is-asked-for",
        "bench/spec/workload.py",
        'place = index if pattern == "independent" else 0',
        "place = 0",
        "tests/bench/test_churn.py::"
        "test_each_subscriber_is_away_once_in_each_period_at_a_time_of_its_own",
    ),
    Row(
        "told-again",
        "bench/load/latency_samples.py",
        "                if noted_ns > after_ns\n",
        "                if noted_ns >= after_ns\n",
        "tests/bench/test_latency_samples.py::test_what_was_told_once_is_not_told_again",
    ),
    Row(
        "order-compared-one-way",
        "bench/load/shared_order.py",
        "                highest[other][number] = self._next[number]\n",
        "",
        "tests/bench/test_shared_order.py::"
        "test_however_deliveries_are_interleaved_the_same_pairs_differ",
    ),
    Row(
        "order-not-looked-at",
        _RECEIVING,
        "        elif self.checker.order is not None:\n",
        "        elif self.checker.order is not None and not subscription:\n",
        "tests/bench/test_receiving.py::"
        "test_two_subscribers_are_compared_where_all_must_have_one_order",
    ),
    Row(
        "fences-believed-where-nothing-is-in-order",
        "bench/load/online_checker.py",
        "                    or (self._may_overtake and lane.has_hole_below(sequence))\n",
        "",
        "tests/bench/test_online_checker.py::"
        "test_a_fence_that_has_overtaken_something_is_still_out",
    ),
    Row(
        "stretches-stay-open-beside-the-sample",
        "bench/load/stretches.py",
        "        self.settle(now_ns - RESOLUTION_NS, now_ns)\n        stretch = self._open.pop(",
        "        stretch = self._open.pop(",
        "tests/results/test_stretches.py::test_no_stretch_goes_on_while_anything_is_received",
        {},
    ),
    Row(
        "fences-believed-because-order-is-asked-for",
        "bench/load/load_plan.py",
        'may_overtake = promised not in ("publisher", "total")',
        'may_overtake = guarantee.order not in ("publisher", "total")',
        "tests/bench/test_guarantees.py::test_a_fence_is_believed_by_what_is_promised",
        {"asked": {"guarantee.order": "publisher"}, "order": "publisher", "may_overtake": True},
    ),
    Row(
        "no-word-of-more-than-is-promised",
        "bench/spec/guarantee_lint.py",
        "if _WEAKEST_FIRST.index(asked) > _WEAKEST_FIRST.index(promised):",
        "if _WEAKEST_FIRST.index(asked) > _WEAKEST_FIRST.index(promised) + 1:",
        "tests/bench/test_guarantees.py::test_more_than_is_promised_is_warned_of",
        {"order": "publisher"},
    ),
)
