"""Tables of evidence about clients, links and processes: one row per state of the other side."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from brokerd.errors import ControlError
from brokerd.model.fault_verbs import CRASH, DISCONNECT, ROAM, SLOW
from brokerd.protocols.interface import CoreStatus
from fault_injection.apply.backends import ClientFaults
from fault_injection.apply.evidence import find_observer, observe_sessions_down
from fault_injection.apply.interface import Fault, MissingEffect
from fault_injection.schedule.targets import Target

AHEAD_NS = 5
STILL: dict[str, Any] = {
    "active": True, "attached": True, "broker": "s1", "session": 1, "session_before": 1,
    "t_applied_ns": 100, "t_healed_ns": 0, "t_lost_ns": 0, "lost_because": "", "t_attached_ns": 0,
    "waiting_bytes": 0, "taken": 0, "taken_since_end": 0, "crashes": {"any": 0, "token": 0},
}  # fmt: skip
"""The row of a client on which a fault has no effect."""


def faults_on(row: dict[str, Any]) -> ClientFaults:
    """Return the faults of a load with one client, whose row is always this one."""

    async def answer(process: str, command: str, **_: Any) -> dict[str, Any]:
        assert process == "load-sub"
        return {**STILL, **row}

    load = SimpleNamespace(
        clients_host="n1", processes={"s1-sub-1": "load-sub"}, addresses={}, load_command=answer
    )
    return ClientFaults(cast("Any", load), {"n1": AHEAD_NS})


def fault_of(verb: str, client: str = "s1-sub-1") -> Fault:
    target = cast("Target", SimpleNamespace(client=client))
    return Fault("f", verb, target, parameters={"to": "s3"} if verb == ROAM else {})


@pytest.mark.parametrize(
    "verb, row, seen",
    [
        (DISCONNECT, {}, None),
        (DISCONNECT, {"attached": False, "t_lost_ns": 120}, {"lost_session": 1, "t_ns": 115}),
        (SLOW, {}, None),
        (SLOW, {"waiting_bytes": 7, "taken": 2}, {"waiting_bytes": 7, "taken": 2, "session": 1}),
        (CRASH, {"attached": False}, None),
        (CRASH, {"crashes": {"any": 2, "token": 1}}, {"crashes": 3}),
        (ROAM, {}, None),
        (ROAM, {"broker": "s3", "attached": False, "session": 2}, None),
        (ROAM, {"broker": "s2", "session": 2}, None),
        (
            ROAM,
            {"broker": "s3", "session": 2, "t_attached_ns": 130},
            {"broker": "s3", "session": 2, "t_ns": 125, "host_stamps": {"n1": 130}},
        ),
    ],
)
def test_the_effect_on_a_client_is_seen_in_its_row_only(
    verb: str, row: dict[str, Any], seen: dict[str, Any] | None
) -> None:
    found = trio.run(faults_on(row).verify_effect, fault_of(verb))
    assert (found is None) == (seen is None)
    assert {key: (found or {})[key] for key in seen or {}} == (seen or {})


@pytest.mark.parametrize(
    "verb, row, seen",
    [
        *[(verb, {"attached": False, "session": 2}, None) for verb in (DISCONNECT, SLOW, CRASH)],
        (DISCONNECT, {}, None),
        (DISCONNECT, {"session": 2, "t_attached_ns": 130}, {"session": 2, "t_ns": 125}),
        (SLOW, {}, {"taken": 0}),
        (SLOW, {"waiting_bytes": 7}, None),
        (SLOW, {"waiting_bytes": 7, "taken_since_end": 1}, {"taken": 1, "session": 1}),
        (CRASH, {}, None),
        (CRASH, {"session": 2, "t_attached_ns": 130, "t_healed_ns": 140}, {"t_ns": 135}),
        (
            *(
                CRASH,
                {"session": 2, "t_attached_ns": 150, "t_healed_ns": 140, "crashes": {"any": 2}},
            ),
            {"t_ns": 145, "crashes": {"any": 2}, "broker": "s1"},
        ),
    ],
)
def test_a_client_has_recovered_when_it_is_connected_and_receives(
    verb: str, row: dict[str, Any], seen: dict[str, Any] | None
) -> None:
    found = trio.run(faults_on(row).verify_recovered, fault_of(verb))
    assert (found is None) == (seen is None)
    assert {key: (found or {})[key] for key in seen or {}} == (seen or {})


@pytest.mark.parametrize("is_active", [True, False])
def test_a_fault_of_a_client_is_undone_when_its_load_generator_says_so(is_active: bool) -> None:
    faults = faults_on({"active": is_active, "t_healed_ns": 140})
    undone = trio.run(faults.verify_undone, fault_of(SLOW))
    assert undone == (None if is_active else {"gone": True})
    assert trio.run(faults.undo, fault_of(SLOW))["t_ns"] == 135


def test_a_client_that_is_in_no_load_has_no_fault() -> None:
    with pytest.raises(ControlError, match="no client called 's9'") as refused:
        trio.run(faults_on({}).verify_effect, fault_of(SLOW, "s9"))
    assert refused.value.kind == "user"


@pytest.mark.parametrize("own", [(), ("b2",), ("b3",), ("b2", "b3")])
@pytest.mark.parametrize("others", [(), ("b2",), ("b3",)])
@pytest.mark.parametrize("peer", ["", "b2"])
def test_a_cut_is_seen_when_no_session_is_left_at_either_end(
    own: tuple[str, ...], others: tuple[str, ...], peer: str
) -> None:
    """b1 is cut off from b2, or from b2 and b3; `others` still have a session with b1."""

    def status(peers: tuple[str, ...]) -> dict[str, Any]:
        core: CoreStatus[str] = CoreStatus(state="running", ready=peers)
        return {**core.to_mapping({each: each for each in peers}), "sessions": [*peers]}

    async def own_status(_: str) -> dict[str, Any]:
        return status(own)

    async def status_of(broker: str) -> dict[str, Any]:
        return status(("b1",) if broker in others else ())

    end = SimpleNamespace(broker="b1", peer=peer, command=own_status)

    async def see() -> Any:
        return await observe_sessions_down([cast("Any", end)], lambda _: ["b2", "b3"], status_of)

    is_seen = "b2" not in own if peer else not own and not others
    assert trio.run(see) == ({"b1": {"ready": [*own]}} if is_seen else None)


RUNS = {"state": "running", "pid": 7, "start_time": 3, "exit_cause": "", "t_exit_ns": 0}
ENDED = {
    "state": "exited", "pid": 7, "exit_code": None, "exit_signal": 9, "exit_cause": "fault:f",
    "t_exit_ns": 50,
}  # fmt: skip
AS_SHOWN = {"pid": 7, "exit_code": None, "exit_signal": 9, "exit_cause": "fault:f"}


def process(row: dict[str, Any], broker: str = "b1", host: str = "n1", pid: int = 7) -> Any:
    """Return an end of a fault with this row of the agent's status, and a broker with this pid."""

    async def read() -> dict[str, Any]:
        return row

    async def command(_: str) -> dict[str, Any]:
        return {"pid": pid, "incarnation": 4}

    return SimpleNamespace(broker=broker, host=host, fault_id="f", row=read, command=command)


def see(verb: str, *ends: Any, machine: str = "") -> Any:
    fault = Fault("f", verb, cast("Target", SimpleNamespace(machine=machine)))
    return trio.run(find_observer(verb), fault, ends)


@pytest.mark.parametrize(
    "row, is_seen",
    [
        (ENDED, True),
        (RUNS, False),
        (RUNS | {"exit_cause": "fault:f"}, False),
        (ENDED | {"exit_cause": "fault:g"}, False),
        (ENDED | {"exit_cause": ""}, False),
    ],
)
def test_a_kill_is_seen_when_the_process_has_ended_by_this_fault(
    row: dict[str, Any], *, is_seen: bool
) -> None:
    stamped = {**AS_SHOWN, "host_stamps": {"n1": 50}}
    assert see("kill", process(row)) == (stamped if is_seen else None)
    alone = {"b1": AS_SHOWN, "host_stamps": {"n1": 50}}
    assert see("kill", process(row), machine="n1") == (alone if is_seen else None)
    both = process(ENDED), process({**row, "t_exit_ns": 60}, "b2", "n1")
    each = {"b1": AS_SHOWN, "b2": AS_SHOWN, "host_stamps": {"n1": 60}}
    assert see("kill", *both, machine="n1") == (each if is_seen else None)


@pytest.mark.parametrize("pid, is_seen", [(7, True), (6, False)])
def test_a_restart_is_seen_when_the_new_process_answers(pid: int, *, is_seen: bool) -> None:
    found = see("restart", process(RUNS, pid=pid))
    assert found == ({"incarnation": 4, "pid": 7, "start_time": 3} if is_seen else None)


@pytest.mark.parametrize("cause, is_seen", [("fault:g", True), ("fault:f", False), ("", False)])
def test_a_restart_is_seen_when_another_fault_ended_the_new_process(
    cause: str, *, is_seen: bool
) -> None:
    row = {**RUNS, **ENDED, "exit_cause": cause, "exit_text": ""}
    if is_seen:
        assert see("restart", process(row)) == {"pid": 7, "start_time": 3, "exit_cause": cause}
        return
    with pytest.raises(MissingEffect):
        see("restart", process(row))


@pytest.mark.parametrize(
    "code, number, text, why",
    [
        (78, None, "log: damaged at byte 9", "b1 has ended (status 78): log: damaged at byte 9"),
        (1, None, "", "b1 has ended (status 1)"),
        (None, 11, "", "b1 has ended (SIGSEGV)"),
    ],
)
def test_a_process_that_ends_at_its_start_is_named_with_the_cause(
    code: int | None, number: int | None, text: str, why: str
) -> None:
    row = {**ENDED, "exit_code": code, "exit_signal": number, "exit_text": text}
    with pytest.raises(MissingEffect) as missing:
        see("restart", process(row))
    assert str(missing.value) == why
