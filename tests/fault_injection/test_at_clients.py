"""Tests of client steps: the right load generator obeys, and only observed steps count."""

import json
import tomllib
from collections.abc import Callable
from typing import Any, cast

import trio
import trio.testing

from brokerd.errors import ControlError
from fault_injection.apply.backends import ClientFaults, WithClients
from fault_injection.apply.injector import Injection, Injector
from fault_injection.apply.interface import FaultBackend
from fault_injection.apply.log import FaultLog
from fault_injection.schedule.schedule import read_schedule
from tests.fault_injection.test_healing import Machine, clock_ns

AHEAD_NS = 7_000_000
STEPS = """
schema = "pubsubctl/faults/1"
name = "story"
[[step]]
id = "away"
at = "1s"
do = "client-disconnect"
on = "s1-sub-1"
for = "2s"
[[step]]
id = "slow"
at = "1s"
do = "client-slow"
on = "s2-sub-1"
for = "2s"
[[step]]
id = "crash"
at = "1s"
do = "client-crash"
on = "s3-sub-1"
for = "2s"
down = "300ms"
[[step]]
id = "roam"
after = "away.recovered"
do = "client-roam"
on = "s1-sub-1"
to = "s3"
[[step]]
id = "cut"
after = "roam.observed"
do = "cut"
on = "b1-s1"
for = "1s"
"""


class StubLoad:
    """A load generator of two subscribers that obeys commands at once.

    Attributes:
        spoil: a function that may change every row before the injector reads the row.
    """

    def __init__(self, spoil: Callable[[dict[str, Any]], None]) -> None:
        self.clients_host = "n01"
        self.processes = {f"s{n}-sub-1": "load-sub" for n in (1, 2, 3)}
        self.addresses = {"s3": "127.0.0.1:9"}
        self.spoil = spoil
        self.rows: dict[str, dict[str, Any]] = {}
        self.told: list[tuple[str, str]] = []

    async def load_command(self, process: str, command: str, **said: Any) -> dict[str, Any]:
        await trio.sleep(0.001)
        assert process == "load-sub"
        fault_id, now_ns = said["fault_id"], clock_ns() + AHEAD_NS
        if command == "fault_apply":
            assert fault_id not in self.rows
            row = {
                "active": said["verb"] != "client-roam", "t_applied_ns": now_ns, "broker": "s1",
                "t_healed_ns": 0, "session_before": 1, "session": 1, "attached": True,
                "lost_because": "", "t_lost_ns": 0, "t_attached_ns": 0, "taken": 0,
                "taken_since_end": 0, "waiting_bytes": 0,
            }  # fmt: skip
            row.update({
                "client-disconnect": {"attached": False, "t_lost_ns": now_ns},
                "client-slow": {"waiting_bytes": 100},
                "client-crash": {"crashes": {"token": 1, "any": 1}},
                "client-roam": {"broker": said.get("to"), "session": 2, "t_attached_ns": now_ns},
            }[said["verb"]])  # fmt: skip
            self.rows[fault_id] = row
            assert said.get("down_ms") == (300 if said["verb"] == "client-crash" else None)
            if said["verb"] == "client-roam":
                assert said["address"] == "127.0.0.1:9"
        row = self.rows[fault_id]
        if command == "fault_heal":
            self.told.append((fault_id, command))
            row.update(
                active=False, t_healed_ns=now_ns, attached=True, t_attached_ns=now_ns,
                session=2, waiting_bytes=0,
            )  # fmt: skip
        if command == "fault_renew" and not row["active"]:
            raise ControlError("user", "it is over")
        self.spoil(row)
        return dict(row)


def play(
    spoil: Callable[[dict[str, Any]], None] = lambda row: None,
    cancelled_after_s: float = 1e6,
    steps: str = STEPS,
) -> tuple[Injection, FaultLog, StubLoad]:
    load, log = StubLoad(spoil), FaultLog()
    made: list[Injection] = []

    async def story() -> None:
        brokers = cast(FaultBackend, Machine((1e9, 1e9)))
        backend = WithClients(brokers, ClientFaults(load, {"n01": AHEAD_NS}))
        schedule = read_schedule(tomllib.loads(steps), "story.toml")
        injector = Injector(schedule, backend, log, clock_ns=clock_ns)
        with trio.move_on_after(cancelled_after_s):
            await injector.run()
        made.append(injector.outcome())

    trio.run(story, clock=trio.testing.MockClock(autojump_threshold=0))
    return made[0], log, load


def test_each_fault_of_a_client_is_seen_in_its_load_generator_and_undone() -> None:
    injection, log, load = play()
    assert injection.problems == ()
    rows = {row["step"]: row for row in injection.rows}
    assert {name: row["state"] for name, row in rows.items()} == {
        "away": "recovered", "slow": "recovered", "roam": "observed", "cut": "recovered",
        "crash": "recovered",
    }  # fmt: skip
    assert sorted(load.told) == [(step, "fault_heal") for step in ("away", "crash", "slow")]
    assert json.loads(rows["crash"]["evidence"]) == {"crashes": 2}
    assert rows["roam"]["t_observed_ns"] >= rows["away"]["t_recovered_ns"]
    stamps = rows["away"]["host_stamps"]["applied"]
    assert stamps == {"n01": rows["away"]["t_applied_ns"] + AHEAD_NS}
    assert [line["stage"] for line in log.lines if line["step"] == "away"][-1] == "recovered"


def test_ctrl_c_ends_client_faults() -> None:
    injection, log, load = play(cancelled_after_s=2.0)
    assert injection.not_healed == ()
    assert sorted(load.told) == [(step, "fault_heal") for step in ("away", "crash", "slow")]
    healed = {line["healed_by"] for line in log.lines if line["stage"] == "healed"}
    assert healed == {"user"}


def test_a_client_fault_without_a_visible_effect_does_not_count() -> None:
    def stays(row: dict[str, Any]) -> None:
        row["attached"] = True
        row["waiting_bytes"] = 0

    injection, _, _ = play(stays)
    assert sorted(text for text in injection.problems if "no effect seen" in text) == [
        "away: no effect seen while client-disconnect lasted",
        "slow: no effect seen while client-slow lasted",
    ]


def test_a_client_that_does_not_recover_is_reported() -> None:
    def away_for_good(row: dict[str, Any]) -> None:
        if row["t_lost_ns"]:
            row["attached"] = False

    injection, _, _ = play(away_for_good)
    assert "away: not recovered within 1min" in injection.problems
    assert any(text.startswith("roam: never begun") for text in injection.problems)


def test_a_lease_that_ran_out_at_the_load_generator_is_a_problem() -> None:
    def forgets(row: dict[str, Any]) -> None:
        row["active"] = False

    injection, _, _ = play(forgets, steps=STEPS.replace('for = "2s"', 'for = "30s"'))
    assert (
        "away: it ended before its time: by `heal`, or because its lease ran out"
        in injection.problems
    )
