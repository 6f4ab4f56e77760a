"""Tests of `inject` with faults that only messages can reveal, on brokers without messages."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from brokerd.errors import ControlError
from fault_injection.apply.injector import Injection
from fault_injection.schedule.plan import expand
from pubsubctl.errors import HostError, LabDirty
from pubsubctl.injection.faults import one_step
from pubsubctl.injection.injection import _result, idle_warning
from pubsubctl.injection.selftest import Trial, _Findings, _judge
from pubsubctl.injection.selftest import _result as selftest_result


class Deployed:
    """Three brokers, one of them down, with this number of clients per broker."""

    def __init__(self, clients: int) -> None:
        rows = [SimpleNamespace(broker=name) for name in ("b1", "b2", "b3")]
        self.wanted = SimpleNamespace(placement=SimpleNamespace(brokers=rows))
        self._clients = clients

    async def broker(self, name: str, command: str) -> dict[str, Any]:
        assert command == "status"
        if name == "b1":
            raise ControlError("closed", "b1 is down")
        return {"clients": self._clients if name == "b3" else 0}


@pytest.mark.parametrize(
    "verb, options, clients, named",
    [
        ("absorb", {"for": "2s"}, 0, "absorb"),
        ("bandwidth", {"for": "2s", "bytes_per_second": 1_000}, 0, "bandwidth"),
        ("crash", {"stall": "2s"}, 0, "absorb"),
        ("crash", {}, 0, ""),
        ("freeze", {"for": "2s"}, 0, ""),
        ("absorb", {"for": "2s"}, 1, ""),
    ],
)
def test_idle_brokers_are_named_as_the_reason_before_nothing_is_seen(
    verb: str, options: dict[str, Any], clients: int, named: str
) -> None:
    steps = expand(one_step(verb, "b1", options))
    warning: str = trio.run(idle_warning, Deployed(clients), steps)
    if not named:
        assert warning == ""
    else:
        assert warning.startswith("no client is connected to any broker: ")
        assert f"{named} can only be seen by the messages that pass" in warning


def test_an_unobserved_fault_is_reported_as_not_seen() -> None:
    row = {"state": "unknown", "verb": "absorb", "target": "b1"}
    result = _result(Injection((row,), ("absorb-b1: no effect seen",), (), ()), 0)
    assert result.text == "not seen   absorb b1"
    assert result.document["faults"] == [row]


def test_a_fault_is_reported_with_its_times_since_the_start() -> None:
    row = {
        "state": "healed", "verb": "freeze", "target": "b3", "t_applied_ns": 7_250_000_000,
        "t_observed_ns": 7_300_000_000, "t_healed_ns": 9_250_000_000, "t_recovered_ns": None,
    }  # fmt: skip
    assert _result(Injection((row,), (), (), ()), 7_000_000_000).text == (
        "healed     freeze b3: applied 0.25 s, observed 0.30 s, healed 2.25 s, lasted 2.00 s"
    )


@pytest.mark.parametrize("not_healed", [(), ("f1", "f2")])
@pytest.mark.parametrize("problems", [(), ("a: no effect seen", "b: refused")])
@pytest.mark.parametrize("down", [(), ("b1", "b3")])
def test_an_injection_says_all_that_is_wrong_and_has_the_status_of_the_worst(
    not_healed: tuple[str, ...], problems: tuple[str, ...], down: tuple[str, ...]
) -> None:
    result = _result(Injection((), problems, not_healed, down), 0)
    assert [type(each) for each in result.because] == [
        *[HostError] * bool(problems), *[LabDirty] * bool(not_healed),
    ]  # fmt: skip
    said = "\n".join(str(each) for each in result.because)
    for text in problems:
        assert text in said
    for fault in not_healed:
        assert f"{fault} may still be in effect" in said
    assert result.text.splitlines() == [f"{b} is down; `pubsubctl deploy` starts it" for b in down]
    expected = {"problems": [*problems], "not_healed": [*not_healed], "down": [*down]}
    assert result.document.items() >= expected.items()


@pytest.mark.parametrize("applied, lasted", [(7, ", lasted 2.00 s"), (None, "")])
def test_a_fault_that_was_never_applied_has_no_duration(applied: int | None, lasted: str) -> None:
    row = {"state": "failed", "verb": "freeze", "target": "b3", "t_healed_ns": 9 * 10**9}
    row["t_applied_ns"] = None if applied is None else applied * 10**9
    text = _result(Injection((row,), (), (), ()), 7 * 10**9).text
    begins = "applied 0.00 s, " if applied else ""
    assert text == f"failed     freeze b3: {begins}healed 2.00 s{lasted}"


def _row(**times_s: float) -> dict[str, Any]:
    stages = ("applied", "observed", "heal_requested", "healed", "recovered")
    return {f"t_{name}_ns": int(times_s.get(name, 0) * 1e9) or None for name in stages}


APPLIED = _row(applied=1, observed=1.5, heal_requested=3, healed=3.25, recovered=4)


@pytest.mark.parametrize(
    "rows, problems, is_optional, outcome",
    [
        ((APPLIED,), (), False, "works"),
        ((APPLIED,), ("s0: not seen",), False, "fails"),
        ((APPLIED, _row()), ("s1: refused",), True, "fails"),
        ((_row(), _row()), ("s0: no nft", "s1: no nft"), True, "unavailable"),
        ((_row(),), ("s0: no nft",), False, "fails"),
        ((APPLIED,), (), True, "works"),
    ],
)
def test_a_trial_that_was_never_applied_is_unavailable_only_if_it_is_optional(
    rows: Any, problems: tuple[str, ...], is_optional: bool, outcome: str
) -> None:
    call: Any = SimpleNamespace(console=SimpleNamespace(table=lambda head, lines: repr(lines)))
    findings = _Findings(has_traffic=True)
    for down in (("b1",), ()):  # the second trial like the first
        trial = Trial("cut a-b", (), is_optional=is_optional)
        findings.trials = [trial]
        _judge(trial, Injection(rows, problems, ("f",) * len(down), down), findings)
        result = selftest_result(call, findings)
        assert (trial.outcome, trial.why) == (outcome, "; ".join(problems))
        kinds = [HostError] * (outcome == "fails") + [LabDirty] * len(down)
        assert [type(each) for each in result.because] == kinds
        table, *lines = result.text.splitlines()
        times = ("0.50 s", "0.25 s", "0.75 s") if rows[0] is APPLIED else ("", "", "")
        assert table == repr([("cut a-b", outcome, *times)])
        assert lines == [
            *[f"cut a-b: {trial.why}"] * (outcome == "unavailable"),
            *(f"{broker} is down; `pubsubctl deploy` starts it" for broker in down),
        ]
    findings.has_traffic = False
    assert selftest_result(call, findings).text.endswith("absorb and bandwidth had no traffic")
