"""Tests of `inject` with faults that only messages can reveal, on brokers without messages."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from brokerd.errors import ControlError
from fault_injection.apply.injector import Injection
from fault_injection.schedule.plan import expand
from pubsubctl.injection.faults import one_step
from pubsubctl.injection.injection import _result, idle_warning


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
