"""Mistakes in how a plan is run: what is waited for, and for how long."""

from pathlib import Path
from typing import Final

from tests.helpers.planted_stories import Row

_STORY: Final = (
    "tests/simulator/test_plans.py::test_a_plan_in_which_something_was_wrong_once_is_right"
)
_DRAWN: Final = "tests/simulator/test_drawn_parameters.py::"
_LINGERS: Final = (
    _DRAWN + "test_a_client_that_stays_away_for_longer_than_its_broker_waits_begins_anew"
)
_LIMITS: Final = _DRAWN + "test_brokers_that_crash_behind_low_limits_lose_nothing"
_SOUND: Final = Path(__file__).parents[1] / "simulator" / "plans" / "sound"

ROWS: Final = (
    Row(
        "waits-for-silence",
        "brokerd/simulator/search/swarm.py",
        "self._drain(lambda: not self._has_converged(), until_quiet=True)",
        "self._drain(lambda: bool(schedule.pending) or not self._has_converged())",
        _STORY,
        {"path": _SOUND / "said_in_every_period.plan"},
    ),
    Row(
        "all-have-their-turn-at-once",
        "brokerd/simulator/checks/timeliness.py",
        "planning.turns(parameters, plan.publications) * (message_ns + disk_ns)",
        "0",
        _STORY,
        {"path": _SOUND / "one_at_a_time.plan"},
    ),
    Row(
        "moves-to-where-nobody-is",
        "brokerd/simulator/world/client_mobility.py",
        "return to != client.broker and to not in gone and client.broker not in gone",
        "return to != client.broker",
        _STORY,
        {"path": _SOUND / "moved_to_where_nobody_is.plan"},
    ),
    Row(
        "ended-broker-stays-away",
        "brokerd/simulator/world/faults.py",
        "            if broker.has_ended:\n",
        "            if broker.has_ended and broker.alive:\n",
        _DRAWN + "test_a_broker_that_ends_for_being_slow_is_started_again",
    ),
    Row(
        "window-checked-for-each-message-of-a-run",
        "brokerd/protocols/gryphon/checks/traffic.py",
        "untaken.taken_bytes >= limit_bytes and not is_rest:",
        "untaken.taken_bytes >= limit_bytes:",
        _DRAWN + "test_a_run_in_messages_of_one_event_may_exceed_a_window_as_one_message_may",
        {"protocol": "gryphon", "seed": 8},
    ),
    Row(
        "four-streams-at-each-broker",
        "brokerd/simulator/checks/growth.py",
        "sources = max(self.brokers + self.sources, self.brokers * self.streams)",
        "sources = max(self.brokers + self.sources, self.brokers * 4)",
        _DRAWN + "test_what_is_kept_of_streams_is_measured_by_how_many_there_are",
    ),
    Row(
        "client-that-attached-elsewhere-is-given-up",
        "brokerd/simulator/checks/lingering.py",
        "if self._oracle.homes.get(client) != broker.number:",
        "if self._oracle.homes.get(client) is None:",
        _LINGERS,
        {"protocol": "durable", "seed": 12},
    ),
    Row(
        "client-is-given-up-too-early",
        "brokerd/protocols/parts/clients/service.py",
        "self._machine.now_ns + self._limits.client_linger_ns)",
        "self._machine.now_ns + self._limits.client_linger_ns // 2)",
        _LINGERS,
        {"protocol": "gryphon", "seed": 6},
    ),
    Row(
        "last-of-the-condensed-runs-is-dropped",
        "brokerd/protocols/gryphon/retained.py",
        "        found += _dense_run(group)\n        if end",
        "        if end",
        _LIMITS,
    ),
    Row(
        "tagged-newcomer-is-heard-through-a-closed-gate",
        "brokerd/protocols/delta_tree/as_published/tagging.py",
        "has_joined=path[0] >= self._state.newcomers",
        "has_joined=False",
        "tests/simulator/test_moving.py::test_clients_of_each_protocol_move_as_its_library_has_them_move",
        {"protocol": "delta_tree", "seed": 11},
    ),
    Row(
        "no-fault-comes-again",
        "brokerd/simulator/search/planning/draw.py",
        "        plan = plan.with_moves([*plan.moves, *repeats])\n",
        "        plan = plan.with_moves([*plan.moves, *repeats[:0]])\n",
        "tests/simulator/test_repeated_faults.py::test_a_third_of_the_plans_repeats_faults_for_the_same_targets",
        {"protocol": "gryphon"},
    ),
    Row(
        "fault-comes-again-before-it-is-over",
        "brokerd/simulator/search/planning/faults.py",
        "        begin = last\n",
        "        begin = move.when\n",
        "tests/simulator/test_repeated_faults.py::test_every_kind_of_fault_may_come_again_when_it_is_over",
        {"kind": "kill"},
    ),
    Row(
        "moves-as-clients-of-a-tree-do",
        "brokerd/simulator/world/client_mobility.py",
        "        if self._cluster.clients_leave_freely:\n            if client",
        "        if not self._cluster:\n            if client",
        "tests/simulator/test_moving.py::test_clients_of_each_protocol_move_as_its_library_has_them_move",
        {"protocol": "ges_reliable", "seed": 2},
    ),
    Row(
        "adversary-draws-what-was-set",
        "brokerd/simulator/search/adversary.py",
        "set_parameters(parameters, options.protocol, topology, options.settings)",
        "parameters",
        _DRAWN + "test_an_adversary_takes_parameters_too_and_says_so_when_it_is_to_be_repeated",
    ),
    Row(
        "boolean-in-one-case-only",
        "brokerd/config.py",
        'if text.lower() in ("true", "false"):',
        'if text in ("True", "False"):',
        _DRAWN + "test_a_boolean_may_be_written_in_any_case",
        {"value": "TRUE"},
    ),
)
