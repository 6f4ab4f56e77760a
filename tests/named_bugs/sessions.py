"""Mistakes in sessions: who is suspected, what is a frame, what waits, which connection counts."""

from typing import Final

from tests.helpers.planted_stories import Row

_SESSIONS: Final = "brokerd/sessions/"
_WIRE: Final = "brokerd/wire/"

ROWS: Final = (
    Row(
        "own-standstill-is-silence",
        _SESSIONS + "failure_detector.py",
        "            self._excused_ns += late_ns\n",
        "",
        "tests/sessions/test_failure_detector.py::test_peers_of_a_machine_that_was_suspended_get_time_to_speak_again",
    ),
    Row(
        "excuse-outlives-a-sign-of-life",
        _SESSIONS + "failure_detector.py",
        "        self._heard_ns = now_ns\n        self._excused_ns = 0\n",
        "        self._heard_ns = now_ns\n",
        "tests/sessions/test_failure_detector.py::test_a_peer_that_falls_silent_after_a_standstill_is_suspected_as_soon_as_any",
    ),
    Row(
        "lateness-without-bound",
        _SESSIONS + "failure_detector.py",
        "self._lateness_ns = min(lateness_ns, (LIMIT_FACTOR - 1) * suspicion_ns // 2)",
        "self._lateness_ns = lateness_ns",
        "tests/sessions/test_failure_detector.py::test_allowance_is_bounded_and_fades",
    ),
    Row(
        "suspects-before-it-has-read",
        _SESSIONS + "failure_detector.py",
        "return now_ns - self._doubted_ns >= GRACE_NS",
        "return True",
        "tests/sessions/test_failure_detector.py::test_a_silent_peer_is_suspected_when_the_silence_is_over_and_a_moment_later",
    ),
    Row(
        "largest-frame-refused",
        _WIRE + "framing.py",
        "        if length + 4 > self.limit_bytes:",
        "        if length + 4 >= self.limit_bytes:",
        "tests/wire/test_framing.py::test_the_largest_frame_is_taken_and_one_byte_more_is_not",
    ),
    Row(
        "prefix-not-counted",
        _WIRE + "framing.py",
        "        if length + 4 > self.limit_bytes:",
        "        if length > self.limit_bytes:",
        "tests/wire/test_framing.py::test_the_largest_frame_is_taken_and_one_byte_more_is_not",
    ),
    Row(
        "header-into-the-next-frame",
        _WIRE + "framing.py",
        "header > length - 4:",
        "header > length:",
        "tests/wire/test_framing.py::test_a_senseless_length_is_refused_as_soon_as_it_is_there",
        {"prefix": bytes((0, 0, 0, 8, 0, 0, 0, 5)), "bytewise": False},
    ),
    Row(
        "length-checked-once-it-is-all-there",
        _WIRE + "framing.py",
        """\
            if len(held) >= 4:
                self._check(_LENGTH.unpack_from(held)[0], 0)
""",
        "",
        "tests/wire/test_framing.py::test_a_senseless_length_is_refused_as_soon_as_it_is_there",
        {"prefix": bytes((0, 0, 0, 61)), "bytewise": True},
    ),
    Row(
        "frame-kept-until-the-next-byte",
        _WIRE + "framing.py",
        "            if available >= length + 4:",
        "            if available > length + 4:",
        "tests/wire/test_framing.py::test_a_frame_that_came_whole_is_a_slice_of_the_chunk",
    ),
    Row(
        "straight-lane-trusts-a-length",
        _WIRE + "straight.py",
        "            place != end\n            or payload_bytes != size\n",
        "            payload_bytes != size\n",
        "tests/wire/test_straight.py::test_with_and_without_the_lane_the_same_is_read",
        {"seed": 1},
    ),
    Row(
        "large-frame-never-passes",
        _SESSIONS + "outbox.py",
        "self.waiting_bytes + size_bytes > self._limit_bytes and self._frames:",
        "self.waiting_bytes + size_bytes > self._limit_bytes:",
        "tests/sessions/test_outbox.py::test_a_frame_larger_than_the_bound_passes_when_nothing_else_waits",
    ),
    Row(
        "heartbeats-pile-up",
        _SESSIONS + "outbox.py",
        "        self._heartbeats = 1\n",
        "        self._heartbeats += 1\n",
        "tests/sessions/test_outbox.py::test_a_heartbeat_goes_before_everything_that_waits_and_once",
    ),
    Row(
        "written-before-it-is-due",
        _SESSIONS + "outbox.py",
        "while frames and not heartbeats_only and frames[0][2] <= now_ns:",
        "while frames and not heartbeats_only:",
        "tests/sessions/test_outbox.py::test_what_is_not_due_holds_up_what_is_behind_it",
    ),
    Row(
        "stale-attempt-replaces",
        _SESSIONS + "session.py",
        "        return hello.newest == old.identity\n",
        "        return hello.session != old.identity\n",
        "tests/sessions/test_session.py::test_a_crossed_attempt_that_arrives_late_does_not_replace_the_session",
    ),
    Row(
        "same-hello-twice",
        _SESSIONS + "session.py",
        "hello.incarnation == incarnation and hello.session <= newest:",
        "hello.incarnation == incarnation and hello.session < newest:",
        "tests/sessions/test_session.py::test_a_hello_of_a_session_that_is_over_is_not_taken_again",
    ),
    Row(
        "both-attempts-kept",
        _SESSIONS + "session.py",
        "if attempt is not None and self.own.number < peer:",
        "if attempt is not None and self.own.number > peer:",
        "tests/sessions/test_session.py::test_a_crossed_attempt_that_arrives_late_does_not_replace_the_session",
    ),
    Row(
        "both-ends-number-alike",
        _SESSIONS + "session.py",
        "identity = 2 * self._opened + (self.own.number > peer)",
        "identity = 2 * self._opened",
        "tests/sessions/test_session.py::test_what_either_end_opens_has_a_number_of_its_own",
    ),
    Row(
        "newest-not-said",
        _SESSIONS + "session.py",
        "            self._newest[session.peer] = session.identity\n",
        "            pass\n",
        "tests/sessions/test_session.py::test_who_lost_a_session_may_replace_it_at_the_end_that_did_not_notice",
    ),
    Row(
        "longest-delay-only",
        _SESSIONS + "link_faults.py",
        '            sum(fault.value for fault in acting if fault.verb == "delay"),',
        '            max([fault.value for fault in acting if fault.verb == "delay"], default=0),',
        "tests/sessions/test_link_faults.py::test_faults_of_one_link_add_up",
    ),
    Row(
        "cut-one-way",
        _SESSIONS + "link_faults.py",
        'whole = "both" in (self.direction, direction) or self.effect == "cut"',
        'whole = "both" in (self.direction, direction)',
        "tests/sessions/test_link_faults.py::test_a_cut_is_never_one_way",
    ),
    Row(
        "lease-never-over",
        _SESSIONS + "link_faults.py",
        "if fault.ends_ns is not None and fault.ends_ns <= now_ns",
        "if fault.ends_ns is not None and fault.ends_ns < now_ns",
        "tests/sessions/test_link_faults.py::test_the_same_fault_again_only_moves_its_end_and_another_of_its_id_is_refused",
    ),
    Row(
        "absorbed-stays-counted",
        _SESSIONS + "link_faults.py",
        "                self.held_bytes -= size_bytes\n",
        "",
        "tests/sessions/test_link_faults.py::test_what_was_absorbed_comes_out_in_order_for_those_who_go",
    ),
    Row(
        "first-quota-only",
        _SESSIONS + "link_faults.py",
        """\
        for fault in quotas:
            if fault.counters["written_bytes"] + size_bytes > fault.value:
""",
        """\
        for fault in quotas[:1]:
            if fault.counters["written_bytes"] + size_bytes > fault.value:
""",
        "tests/sessions/test_link_faults.py::test_of_two_full_disks_the_fuller_one_refuses",
    ),
    Row(
        "what-omits-sends-keeps-what-comes-in",
        _SESSIONS + "link_faults.py",
        'if self.verb in DISK_VERBS or (self.verb == "send-omission" and direction == "in"):',
        "if self.verb in DISK_VERBS:",
        "tests/runtime/test_link_faults.py::test_a_broker_that_omits_sends_handles_what_comes_and_is_not_suspected",
    ),
)
