"""Silence is sent to live clients that have all events, above their acknowledged positions."""

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.model.identity import StreamId
from brokerd.protocols.durable.consolidated_stream import SILENCE, Silences
from brokerd.protocols.durable.state import Mode
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine

STREAM = StreamId(0, 0, 0)
INTERVAL_NS = 100
POSITION = 10
OTHER_MODES = tuple(mode for mode in Mode if mode is not Mode.LIVE)


def said(**about: Any) -> tuple[list[tuple[int, int]], bool]:
    """Return the silence that a lane receives, and whether more is due later."""
    machine = EventMachine()
    deadlines: DeadlineQueue[Any] = DeadlineQueue()
    lane = SimpleNamespace(
        **{"stream": STREAM, "mode": Mode.LIVE, "out": 0, "floor": 0, "acknowledged": 4, **about}
    )
    local = SimpleNamespace(number=1, lanes={STREAM: lane}, is_attached=about.get("attached", True))
    found: list[tuple[int, int]] = []
    windows = SimpleNamespace(
        announce_in=lambda _, position, silence: found.append((silence.first, silence.last))
    )
    hosted = {STREAM: SimpleNamespace(position=POSITION)}
    silences = Silences(
        machine, deadlines, INTERVAL_NS, hosted, {1: local}, windows  # type: ignore[arg-type,dict-item]
    )  # fmt: skip
    silences.announce()
    return found, deadlines.instant((SILENCE, None)) == INTERVAL_NS


def test_a_live_client_without_events_receives_the_position() -> None:
    assert said() == ([(5, POSITION)], True)


@pytest.mark.parametrize("floor, is_told", [(9, True), (POSITION, True), (POSITION + 1, False)])
def test_nothing_is_sent_below_the_claimed_position_of_a_client(floor: int, is_told: bool) -> None:
    assert said(floor=floor) == ([(5, POSITION)] if is_told else [], True)


@pytest.mark.parametrize("mode", OTHER_MODES)
def test_a_client_that_is_not_live_receives_no_silence(mode: Mode) -> None:
    assert said(mode=mode) == ([], True)


@pytest.mark.parametrize("out, attached", [*product((0, 3), (True, False))])
def test_events_in_flight_are_delivered_first(out: int, attached: bool) -> None:
    is_told = attached and not out
    assert said(out=out, attached=attached) == ([(5, POSITION)] if is_told else [], attached)


@pytest.mark.parametrize("acknowledged", [POSITION, POSITION + 1])
def test_a_client_that_has_everything_is_left_alone(acknowledged: int) -> None:
    assert said(acknowledged=acknowledged) == ([], False)
