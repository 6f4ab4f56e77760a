"""Stories about running a schedule: on a clock that jumps, against a stub backend."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from brokerd.errors import ControlError
from brokerd.protocols.registry import protocol_on
from fault_injection.apply.injector import Injection, Injector
from fault_injection.apply.interface import Evidence, Fault, MissingEffect
from fault_injection.apply.log import LEARNED, FaultLog
from fault_injection.schedule.schedule import load_schedule
from tests.fault_injection.test_schedule import (
    ABSORB,
    HEAD,
    KILL,
    RESTART,
    SECOND_NS,
    TOPOLOGY,
    read,
    step,
)

ORIGIN_NS = 1_000 * SECOND_NS


def clock_ns() -> int:
    return round(trio.current_time() * 1e9)


class MadeUpBackend:
    """A backend without effect that shows the observations of a story.

    Every act takes a millisecond, so that no two acts happen at the same instant.
    """

    def __init__(self) -> None:
        self.running = protocol_on(TOPOLOGY)
        self.machines = {"n01": ("p1", "b1"), "n02": ("b3",), "n03": ("s1", "s2")}
        self.calls: list[str] = []
        self.active: dict[str, int] = {}
        self.exit_signal = 9
        self.refuses: dict[str, Exception] = {}
        self.hides: set[str] = set()
        self.recovers_after_s = 1.0
        self.since: dict[str, float] = {}

    async def _call(self, what: str, fault: Fault) -> None:
        await trio.sleep(0.001)
        call = f"{what} {fault.fault_id}"
        self.calls.append(call)
        if call in self.refuses:
            raise self.refuses[call]

    async def apply(self, fault: Fault, lease_ns: int) -> Evidence:
        await self._call("apply", fault)
        self.active[fault.fault_id] = lease_ns
        self.since[fault.fault_id] = trio.current_time()
        return {"t_ns": clock_ns()}

    async def verify_effect(self, fault: Fault) -> Evidence | None:
        if (refusal := self.refuses.get(f"effect {fault.fault_id}")) is not None:
            raise refusal
        if f"effect {fault.fault_id}" in self.hides or fault.fault_id not in self.active:
            return None
        if fault.verb == "absorb":
            held = int((trio.current_time() - self.since[fault.fault_id]) * 100)
            return {"absorbed_publications": held, "forwarded_since_applied": 0} if held else None
        return {"exit_signal": self.exit_signal}

    async def renew(self, fault: Fault, lease_ns: int) -> None:
        await self._call("renew", fault)
        self.active[fault.fault_id] = lease_ns

    async def undo(self, fault: Fault) -> Evidence:
        await self._call("undo", fault)
        self.active.pop(fault.fault_id, None)
        self.since[fault.fault_id] = trio.current_time()
        return {"t_ns": clock_ns()}

    async def verify_undone(self, fault: Fault) -> Evidence | None:
        return None if fault.fault_id in self.active else {"gone": True}

    async def verify_recovered(self, fault: Fault) -> Evidence | None:
        waited_s = trio.current_time() - self.since[fault.fault_id]
        return {"state": "running"} if waited_s >= self.recovers_after_s else None


def play(
    text: str,
    backend: MadeUpBackend,
    *,
    head: str = HEAD,
    folder: Path | None = None,
    until_s: float | None = None,
) -> tuple[Injection, list[dict[str, Any]]]:
    """Run a schedule in no time; interrupt the run after `until_s`, as by Ctrl-C, if given."""
    outcome: list[Injection] = []
    log = FaultLog(folder)

    async def story() -> None:
        await trio.sleep(ORIGIN_NS / 1e9 - 0.5 - trio.current_time())
        injector = Injector(read(text, head), backend, log, clock_ns=clock_ns)
        with trio.move_on_after(1e6 if until_s is None else 0.5 + until_s):
            await injector.run(ORIGIN_NS)
        outcome.append(injector.outcome())

    trio.run(story, clock=trio.testing.MockClock(autojump_threshold=0))
    log.close()
    return outcome[0], log.lines


def stages(lines: list[dict[str, Any]], fault_id: str) -> dict[str, float]:
    """Return the times of a fault's stages, in seconds after the origin."""
    own = [line for line in lines if line["fault_id"] == fault_id]
    assert len({line["stage"] for line in own}) == len(own), own
    return {line["stage"]: round((line["t_ns"] - ORIGIN_NS) / 1e9, 2) for line in own}


def row(injection: Injection, fault_id: str) -> dict[str, Any]:
    return next(dict(row) for row in injection.rows if row["fault_id"] == fault_id)


# ---------------------------------------------------------------- as planned


def test_absorb_kill_restart_happen_in_order_and_nothing_is_released() -> None:
    backend = MadeUpBackend()
    injection, lines = play(ABSORB + KILL + RESTART, backend)
    assert injection.problems == ()
    assert not any(call.startswith("undo") for call in backend.calls)
    absorb, kill, restart = (stages(lines, name) for name in "akr")
    assert absorb["planned"] == 8.0
    assert absorb["requested"] <= absorb["applied"] < absorb["observed"]
    assert kill["planned"] == pytest.approx(absorb["applied"] + 2, abs=0.05)
    assert absorb["healed"] == kill["applied"]
    assert "heal_requested" not in absorb, "it ended with its broker"
    assert restart["planned"] == pytest.approx(kill["applied"] + 20, abs=0.02)
    assert kill["healed"] == restart["applied"]
    assert kill["recovered"] == restart["recovered"]
    assert row(injection, "a")["healed_by"] == "process-death"
    assert row(injection, "a")["state"] == "healed"
    assert row(injection, "k")["state"] == "recovered"
    assert row(injection, "r")["state"] == "recovered"
    assert injection.down == ()


@pytest.mark.parametrize("fails", [False, True])
def test_a_kill_ends_with_the_first_restart_that_follows_it(*, fails: bool) -> None:
    """A broker is killed again before its first restart has recovered."""
    backend = MadeUpBackend()
    if fails:
        backend.hides = {"effect r"}
    restart = RESTART.replace('delay = "20s"', 'delay = "500ms"')
    assert restart != RESTART
    again = step(id="k2", after="r.applied", delay="300ms", do="kill", on="b1", signal="KILL")
    again += step(id="r2", after="k2.applied", delay="35s", do="restart", on="b1")
    injection, lines = play(ABSORB + KILL + restart + again, backend)
    kill, restarted, kill2, restarted2 = (stages(lines, name) for name in ("k", "r", "k2", "r2"))
    assert restarted["applied"] < kill2["applied"] < restarted2["applied"]
    first = restarted2 if fails else restarted
    for one, other in ((kill, first), (kill2, restarted2)):
        assert one["heal_requested"] == other["requested"]
        assert one["healed"] == other["applied"]
        assert one["recovered"] == other["recovered"]
    assert bool(injection.problems) == fails
    assert injection.down == ()


def test_a_restart_is_recorded_while_the_next_kill_has_no_answer() -> None:
    class SlowKill(MadeUpBackend):
        async def apply(self, fault: Fault, lease_ns: int) -> Evidence:
            if fault.fault_id == "k2":
                await trio.sleep(4)
            return await super().apply(fault, lease_ns)

    outcome, lines = play(
        step(id="k1", at="1s", do="kill", on="b1")
        + step(id="r1", at="3s", do="restart", on="b1")
        + step(id="k2", at="3s", do="kill", on="b1")
        + step(id="r2", at="9s", do="restart", on="b1"),
        SlowKill(),
    )
    assert (outcome.problems, outcome.down) == ((), ())
    healed = {line["step"]: line["evidence"] for line in lines if line["stage"] == "healed"}
    assert healed == {"k1": {"restarted_by": "r1"}, "k2": {"restarted_by": "r2"}}


def test_a_restart_has_twenty_seconds_to_show_its_effect() -> None:
    backend = MadeUpBackend()
    backend.hides = {"effect r"}
    injection, lines = play(ABSORB + KILL + RESTART, backend)
    assert injection.problems == ("r: no effect seen within 20s",)
    (failed,) = [line for line in lines if line["stage"] == "failed"]
    waited_s = (failed["t_ns"] - ORIGIN_NS) / 1e9 - stages(lines, "r")["applied"]
    assert waited_s == pytest.approx(20, abs=1)


def test_absorbed_publications_are_counted_until_the_end_of_the_fault() -> None:
    injection, _ = play(ABSORB + KILL, MadeUpBackend())
    absorbed = row(injection, "a")["absorbed_msgs"]
    assert absorbed == pytest.approx(200, abs=5), "100 a second for 2 s, not what was first seen"
    assert injection.down == ("b1",)


def test_a_fault_that_lasts_is_healed_at_the_end_of_its_time_and_seen_to_recover() -> None:
    backend = MadeUpBackend()
    cut = step(id="c", at="3s", do="cut", on="b3-s3", for_="5s")
    injection, lines = play(cut, backend)
    cut_stages = stages(lines, "c")
    assert cut_stages["heal_requested"] == pytest.approx(8, abs=0.01)
    assert cut_stages["recovered"] == pytest.approx(9, abs=0.05)
    assert row(injection, "c")["healed_by"] == "schedule"
    assert row(injection, "c")["state"] == "recovered"


def test_an_absorb_followed_by_a_cut_is_healed_after_the_cut() -> None:
    backend = MadeUpBackend()
    absorb = step(id="a", at="1s", do="absorb", on="b1-s1", for_="2s")
    cut = step(id="c", after="a", do="cut", on="b1-s1", for_="2s")
    injection, lines = play(absorb + cut, backend)
    order = [call for call in backend.calls if not call.startswith("renew")]
    assert order == ["apply a", "apply c", "undo a", "undo c"]
    assert stages(lines, "a")["healed"] == stages(lines, "c")["applied"]
    assert injection.problems == ()


def test_anchors_wait_for_observed_events_instead_of_planned_events() -> None:
    backend = MadeUpBackend()
    backend.recovers_after_s = 7.0
    after = step(id="c", after="r.recovered", delay="2s", do="cut", on="b3-s3", for_="1s")
    _, lines = play(ABSORB + KILL + RESTART + after, backend)
    recovered = stages(lines, "r")["recovered"]
    assert recovered == pytest.approx(stages(lines, "r")["applied"] + 7, abs=0.05)
    assert stages(lines, "c")["planned"] == pytest.approx(recovered + 2, abs=0.02)


def test_leases_are_renewed_each_third_as_long_as_a_fault_lasts() -> None:
    backend = MadeUpBackend()
    freeze = step(id="f", at="1s", do="freeze", on="b1", for_="30s")
    play(freeze, backend, head=HEAD + '[guard]\nlease = "15s"\n')
    assert backend.calls.count("renew f") == 5
    assert backend.calls[-1] == "undo f"


def test_the_whole_demo_runs() -> None:
    """The three faults of the demo appear in the order of the story."""
    backend = MadeUpBackend()
    text = Path(load_schedule("demo").source).read_text()
    body = text[text.index("[guard]") :]
    injection, _ = play(body, backend)
    assert injection.problems == ()
    assert [row["state"] for row in injection.rows] == ["healed", *["recovered"] * 3]


def test_the_records_on_disk_equal_the_records_in_memory(tmp_path: Path) -> None:
    injection, lines = play(ABSORB + KILL + RESTART, MadeUpBackend(), folder=tmp_path)

    def read_lines(name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]

    *stage_lines, learned = read_lines("log.jsonl")
    assert stage_lines == lines
    assert (learned["fault_id"], learned["stage"]) == ("a", LEARNED)
    absorbed = row(injection, "a")
    assert learned["evidence"] == {
        "absorbed_publications": absorbed["absorbed_msgs"],
        "absorbed_bytes": absorbed["absorbed_bytes"],
    }
    assert read_lines("faults.jsonl") == [dict(row) for row in injection.rows]
    plan = {line["step"]: line for line in read_lines("plan.jsonl")}
    assert plan["a"]["ended_by"] == "k"
    assert plan["a"]["duration_ns"] == 2 * SECOND_NS
    assert plan["r"]["after"] == ["k", "applied"]


# ---------------------------------------------------------------- not as planned


def test_a_fault_without_visible_effect_is_unknown_and_still_healed() -> None:
    backend = MadeUpBackend()
    backend.hides.add("effect a")
    injection, lines = play(ABSORB, backend)
    assert row(injection, "a")["state"] == "unknown"
    assert "healed" in stages(lines, "a")
    (problem,) = injection.problems
    assert problem.startswith("a: no effect seen while absorb lasted; only messages show it")


def test_a_fault_counts_as_healed_only_after_its_end_was_verified() -> None:
    class Slow(MadeUpBackend):
        """A backend that confirms a heal at once, but takes the story's time over the heal."""

        def __init__(self, lingers_s: float) -> None:
            super().__init__()
            self.lingers_s = lingers_s
            self.gone_at_s = 0.0

        async def undo(self, fault: Fault) -> Evidence:
            self.gone_at_s = self.gone_at_s or trio.current_time() + self.lingers_s
            return {"t_ns": clock_ns()}

        async def verify_undone(self, fault: Fault) -> Evidence | None:
            is_gone = 0 < self.gone_at_s <= trio.current_time()
            return {"gone_at_s": self.gone_at_s} if is_gone else None

        async def verify_recovered(self, fault: Fault) -> Evidence | None:
            assert trio.current_time() >= self.gone_at_s > 0, "nobody has seen that it is gone"
            return {"state": "running"}

    cut = step(id="c", at="1s", do="cut", on="b3-s3", for_="2s")
    late = Slow(lingers_s=5.0)
    injection, lines = play(cut, late)
    assert (injection.problems, injection.not_healed) == ((), ())
    (healed,) = [line for line in lines if line["stage"] == "healed"]
    assert healed["evidence"]["gone_at_s"] == late.gone_at_s, "what showed it is written down"

    never = Slow(lingers_s=1e9)
    injection, lines = play(cut, never)
    assert injection.not_healed == ("c",)
    assert injection.problems == ("c: may still be there: not verified as removed",)
    assert not [line for line in lines if line["stage"] in ("healed", "recovered")]


def test_a_kill_recorded_with_another_signal_did_not_land() -> None:
    backend = MadeUpBackend()
    backend.exit_signal = 15
    kill = step(id="k", at="1s", do="kill", on="b1", expect={"exit_signal": 9})
    injection, _ = play(kill, backend)
    assert injection.problems == ("k: ended by signal 15, and 9 was expected",)
    assert row(injection, "k")["state"] == "unknown"


def test_a_refused_fault_has_failed_and_its_dependent_steps_never_start() -> None:
    backend = MadeUpBackend()
    backend.refuses["apply k"] = ControlError("user", "b1 is not running")
    independent = step(id="c", at="40s", do="cut", on="b3-s3", for_="1s")
    injection, _ = play(ABSORB + KILL + RESTART + independent, backend)
    assert row(injection, "k")["state"] == "failed"
    assert row(injection, "r")["state"] == "failed"
    assert "r: never begun: k did not reach applied" in injection.problems
    assert row(injection, "a")["healed_by"] == "schedule", "released, as its killer never came"
    assert row(injection, "c")["state"] == "recovered", "others go on"
    assert "apply r" not in backend.calls


def test_a_fault_of_a_client_that_was_refused_is_not_healed() -> None:
    """A load generator without the fault refuses the heal, as if the fault could not end."""
    backend = MadeUpBackend()
    backend.refuses["apply d"] = ControlError("user", "s3-sub-1 has no session with s3")
    away = step(id="d", at="1s", do="client-disconnect", on="s3-sub-1", for_="2s")
    injection, _ = play(away, backend)
    assert backend.calls == ["apply d"]
    assert injection.problems == ("d: s3-sub-1 has no session with s3",)
    assert injection.not_healed == ()


def test_a_lasting_fault_with_a_lost_reply_is_healed_at_once() -> None:
    """The fault may have been applied."""
    backend = MadeUpBackend()
    backend.refuses["apply c"] = ControlError("closed", "connection lost")
    cut = step(id="c", at="1s", do="cut", on="b3-s3", for_="50s")
    injection, lines = play(cut, backend)
    assert backend.calls == ["apply c", "undo c"]
    assert stages(lines, "c")["healed"] < 2
    assert row(injection, "c")["state"] == "failed"


def test_a_broker_that_does_not_recover_in_time_is_a_problem() -> None:
    backend = MadeUpBackend()
    backend.recovers_after_s = 100
    injection, lines = play(ABSORB + KILL + RESTART, backend)
    assert injection.problems == ("r: not recovered within 1min",)
    assert "recovered" not in stages(lines, "r")
    assert injection.down == ("b1",)


def test_a_broker_that_ends_at_its_start_is_still_ended_and_the_cause_is_named() -> None:
    backend = MadeUpBackend()
    backend.refuses["effect r"] = MissingEffect("b1 has ended (status 78): damaged")
    injection, lines = play(ABSORB + KILL + RESTART, backend)
    assert injection.problems == ("r: b1 has ended (status 78): damaged",)
    restart = stages(lines, "r")
    assert restart["failed"] == pytest.approx(restart["applied"], abs=0.1)
    assert "healed" not in stages(lines, "k")
    assert injection.down == ("b1",)


def test_no_more_elements_fail_at_once_than_the_guard_allows() -> None:
    """Lint could not foresee the long recovery."""
    backend = MadeUpBackend()
    backend.recovers_after_s = 30
    other = step(id="f", at="45s", do="freeze", on="b3", for_="1s")
    injection, _ = play(ABSORB + KILL + RESTART + other, backend)
    assert injection.problems == ("f: not begun: b1, b3 would be failed at once; at most 1 may",)
    assert "apply f" not in backend.calls


FREEZE = step(id="f", at="1s", do="freeze", on="b1", for_="5s")
CUT_AFTER_ABSORB = step(
    id="a", at="1s", do="absorb", on="b1-s1", for_="2s"
) + step(id="c", after="a", do="cut", on="b1-s1", for_="2s")  # fmt: skip


@pytest.mark.parametrize(
    "text, refuses, hides",
    [
        pytest.param(FREEZE, {}, "", id="by schedule"),
        pytest.param(FREEZE, {"renew f": "user"}, "", id="by its lease"),
        pytest.param(FREEZE, {"apply f": "busy"}, "", id="after a lost answer"),
        pytest.param(FREEZE, {"apply f": "user"}, "", id="refused"),
        pytest.param(FREEZE, {}, "effect f", id="without an effect"),
        pytest.param(KILL.replace('"a"', '"f"') + FREEZE, {"apply k": "user"}, "", id="kill"),
        pytest.param(ABSORB + KILL + RESTART, {}, "", id="by a restart"),
        pytest.param(CUT_AFTER_ABSORB, {}, "", id="by a cut"),
    ],
)
def test_a_fault_that_has_ended_in_any_way_leaves_room_for_the_next(
    text: str, refuses: dict[str, Any], hides: str
) -> None:
    """One broker may be failed at a time; the next fault is at another broker."""
    backend = MadeUpBackend()
    backend.hides = {hides}
    backend.refuses = {call: ControlError(kind, "refused") for call, kind in refuses.items()}
    head = HEAD + '[guard]\nlease = "3s"\nmax_faulty_brokers = 1\n'
    later = step(id="z", at="60s", do="freeze", on="b3", for_="1s")
    injection, _ = play(text + later, backend, head=head)
    assert "apply z" in backend.calls, injection.problems
    assert not [each for each in injection.problems if each.startswith("z")]


def test_a_fault_that_fails_nothing_is_admitted_beside_a_failed_broker() -> None:
    backend = MadeUpBackend()
    slow = step(id="d", at="2s", do="delay", on="b3-s3", for_="1s", latency="5ms")
    injection, _ = play(FREEZE + slow, backend, head=HEAD + "[guard]\nmax_faulty_brokers = 1\n")
    assert "apply d" in backend.calls
    assert not [each for each in injection.problems if each.startswith("d: not begun")]


@pytest.mark.parametrize("stage", ["applied", "observed", "healed", "recovered"])
def test_a_step_may_begin_at_each_stage_of_another(stage: str) -> None:
    backend = MadeUpBackend()
    later = step(id="z", after=f"f.{stage}", do="freeze", on="b3", for_="1s")
    _, lines = play(FREEZE + later, backend, head=HEAD + "[guard]\nmax_faulty_brokers = 2\n")
    assert stages(lines, "z")["planned"] == stages(lines, "f")[stage]


@pytest.mark.parametrize("within, until_s", [("1s", 2), ("5s", 6)])
def test_the_effect_of_a_kill_is_awaited_for_its_own_time_only(within: str, until_s: int) -> None:
    backend = MadeUpBackend()
    backend.hides = {"effect k"}
    kill = step(id="k", at="1s", do="kill", on="b1", expect={"within": within})
    injection, lines = play(kill, backend)
    assert injection.problems == (f"k: no effect seen within {within}",)
    assert round(stages(lines, "k")["failed"]) == until_s


def test_a_lease_that_expires_early_is_reported() -> None:
    backend = MadeUpBackend()
    backend.refuses["renew f"] = ControlError("user", "fault f is healed")
    freeze = step(id="f", at="1s", do="freeze", on="b1", for_="30s")
    injection, lines = play(freeze, backend, head=HEAD + '[guard]\nlease = "6s"\n')
    assert row(injection, "f")["healed_by"] == "lease"
    assert stages(lines, "f")["failed"] < 5, "the injector waits for a fault that has ended"
    assert injection.problems == (
        "f: it ended before its time: by `heal`, or because its lease ran out",
    )


@pytest.mark.parametrize("silent", [(), (2,), (2, 5), (1, 2, 3)])
def test_renewals_have_their_usual_pace_again_after_each_answer(silent: tuple[int, ...]) -> None:
    """A lease of 12 s is renewed each 4 s, and after 1 s if there was no answer."""
    begun_s: list[float] = []

    class Forgetful(MadeUpBackend):
        async def renew(self, fault: Fault, lease_ns: int) -> None:
            begun_s.append(trio.current_time())
            if len(begun_s) in silent:
                raise ControlError("busy", "no answer")

    head = HEAD + '[guard]\nlease = "12s"\n'
    play(step(id="f", at="1s", do="freeze", on="b1", for_="30s"), Forgetful(), head=head)
    gaps = [later - earlier for earlier, later in pairwise(begun_s)]
    assert len(gaps) >= 6
    assert gaps == pytest.approx(
        [1 if number in silent else 4 for number in range(1, 1 + len(gaps))], abs=0.1
    )


def test_a_renewal_without_answer_is_tried_again_before_the_lease_ends() -> None:
    backend = MadeUpBackend()
    backend.refuses["renew f"] = ControlError("busy", "no answer")
    freeze = step(id="f", at="1s", do="freeze", on="b1", for_="14s")
    play(freeze, backend, head=HEAD + '[guard]\nlease = "12s"\n')
    assert backend.calls.count("renew f") >= 8


def test_a_fault_that_cannot_be_healed_is_named() -> None:
    backend = MadeUpBackend()
    backend.refuses["undo c"] = ControlError("closed", "nobody answers")
    cut = step(id="c", at="1s", do="cut", on="b3-s3", for_="2s")
    injection, _ = play(cut, backend)
    assert injection.not_healed[0] == "c"
    assert "c: may still be there: nobody answers" in injection.problems


# ---------------------------------------------------------------- interrupted


@pytest.mark.parametrize("until_s", [8.5, 9.99, 10.001, 10.5, 20.0, 30.5, 35.0])
def test_an_interruption_at_any_moment_leaves_no_fault_behind(until_s: float) -> None:
    backend = MadeUpBackend()
    other = step(id="c", after="r.recovered", do="cut", on="b3-s3", for_="50s")
    injection, _ = play(ABSORB + KILL + RESTART + other, backend, until_s=until_s)
    lasting = {"a", "c"} & set(backend.active)
    killed = "apply k" in backend.calls
    assert lasting <= ({"a"} if killed else set()), "only what died with its broker"
    assert injection.not_healed == ()
    was_down = "apply k" in backend.calls and "recovered" not in row(injection, "r")["state"]
    assert injection.down == (("b1",) if was_down else ())


def test_an_interruption_while_a_fault_is_being_applied_undoes_it() -> None:
    backend = MadeUpBackend()
    slow = backend.apply

    async def apply(fault: Fault, lease_ns: int) -> Evidence:
        evidence = await slow(fault, lease_ns)
        await trio.sleep(5)  # the answer is long in coming
        return evidence

    backend.apply = apply  # type: ignore[method-assign]
    cut = step(id="c", at="1s", do="cut", on="b3-s3", for_="50s")
    injection, lines = play(cut, backend, until_s=3)
    assert backend.active == {}
    assert row(injection, "c")["healed_by"] == "user"
    assert "applied" not in stages(lines, "c"), "nobody has said that it was"


def test_a_bug_in_the_backend_propagates_and_leaves_no_fault() -> None:
    backend = MadeUpBackend()

    async def fail(fault: Fault) -> Evidence | None:
        if fault.fault_id == "k":
            raise ZeroDivisionError
        return await MadeUpBackend.verify_effect(backend, fault)

    backend.verify_effect = fail  # type: ignore[method-assign]
    freeze = step(id="f", at="1s", do="freeze", on="b1", for_="60s")
    kill = step(id="k", at="9s", do="kill", on="b1")

    with pytest.raises(ExceptionGroup) as caught:
        play(freeze + kill, backend)
    assert caught.group_contains(ZeroDivisionError)
    assert "f" not in backend.active
