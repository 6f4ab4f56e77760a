"""Schedules as lanes: a line of characters per target, a character per tick.

    [lanes]
    tick     = "1s"
    b1       = "....................sssk.............................r....."
    "b1->s1" = "..........xxx..........................................."

A lane is another notation for steps, which shows time as a picture. The equivalent steps are
checked, printed and run. Paper: [DFT11], its authors' own notation.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from brokerd.units import MILLISECOND_NS, format_duration, parse_duration_ns

TICK: Final = "tick"
LEGEND: Final = (
    "s stall, k kill, r restart, z freeze, c continue, x cut, = restore, m mark, . nothing"
)

_GLYPHS: Final = {"▼": "k", "▲": "r", "§": "m", " ": ".", "_": "."}
_LASTING: Final = {"s": "absorb", "z": "freeze", "x": "cut"}
_ENDED_BY: Final = {"z": "c", "x": "="}
_AT_ONCE: Final = {"k": "kill", "r": "restart"}
_NOTHING: Final = (".", "m")
_CLIENTS_ONLY: Final = {"j": "join", "d": "depart", "♦": "join", "◊": "depart"}


class LaneError(ValueError):
    """An error in a lane, caused by the user; `key` is the target of the lane, or "tick"."""

    def __init__(self, key: str, value: object, text: str) -> None:
        super().__init__(text)
        self.key = key
        self.value = value


def steps_of(lanes: object) -> list[dict[str, Any]]:
    """Return the [[step]] tables that are equivalent to [lanes].

    Raises:
        LaneError: a character has no meaning, or stands at a wrong place.
    """
    if not isinstance(lanes, Mapping) or not all(isinstance(row, str) for row in lanes.values()):
        raise LaneError("", lanes, "expected a tick, and a text for each target")
    rest = dict(lanes)
    try:
        tick_ns = parse_duration_ns(rest.pop(TICK, None), MILLISECOND_NS)
    except ValueError as error:
        raise LaneError(TICK, lanes.get(TICK), str(error)) from None
    if tick_ns == 0:
        raise LaneError(TICK, lanes[TICK], "takes no time at all")
    return [step for target, text in rest.items() for step in _Lane(target, text, tick_ns).steps()]


class _Lane:
    """The lane of one target."""

    def __init__(self, target: str, text: str, tick_ns: int) -> None:
        self._target = target
        line = text.strip().strip("|") if "|" in text else text  # a space is a tick, too
        self._marks = [_GLYPHS.get(mark, mark) for mark in line]
        self._text = text
        self._tick_ns = tick_ns
        self._counts: dict[str, int] = {}

    def steps(self) -> Iterator[dict[str, Any]]:
        marks, place = self._marks, 0
        stalled = ""
        while place < len(marks):
            mark, begin = marks[place], place
            if mark in _LASTING:
                place = self._end(place)
                waits = stalled if mark == "x" else ""
                yield self._step(_LASTING[mark], begin, lasts=place - begin, after=waits)
                stalled = ""
                ender = marks[place] if place < len(marks) else ""
                if mark == "s" and ender in ("k", "x"):
                    stalled = self._id("absorb", self._counts["absorb"])
                elif ender == _ENDED_BY.get(mark):
                    place += 1
                continue
            if mark in _AT_ONCE:
                yield self._step(_AT_ONCE[mark], begin, after=stalled if mark == "k" else "")
                stalled = ""
            elif mark in _CLIENTS_ONLY:
                noun = _CLIENTS_ONLY[mark]
                raise self._wrong(f"no schedule lets a broker {noun}; see `pubsubctl topology`")
            elif mark in _ENDED_BY.values():
                begun = next(key for key, ender in _ENDED_BY.items() if ender == mark)
                raise self._wrong(f"{mark!r} at {place + 1} ends nothing: no {begun!r} before it")
            elif mark not in _NOTHING:
                raise self._wrong(f"{mark!r} at {place + 1} has no meaning: {LEGEND}")
            place += 1

    def _end(self, place: int) -> int:
        """Return the place at which a step from this place ends: its end mark, or its last mark."""
        mark = self._marks[place]
        run = place
        while run < len(self._marks) and self._marks[run] == mark:
            run += 1
        ender, at = _ENDED_BY.get(mark), run
        while ender and at < len(self._marks) and self._marks[at] in (*_NOTHING, mark):
            at += 1
        return at if ender and at < len(self._marks) and self._marks[at] == ender else run

    def _step(self, verb: str, place: int, *, lasts: int = 0, after: str = "") -> dict[str, Any]:
        self._counts[verb] = self._counts.get(verb, 0) + 1
        step: dict[str, Any] = {"id": self._id(verb, self._counts[verb])}
        if after:
            step["after"] = after
        else:
            step["at"] = format_duration(place * self._tick_ns)
        step |= {"do": verb, "on": self._target}
        if lasts:
            step["for"] = format_duration(lasts * self._tick_ns)
        if verb == "kill":
            step["expect"] = {"exit_signal": 9}
        return step

    def _id(self, verb: str, count: int) -> str:
        target = re.sub(r"[^a-z0-9-]+", "-", self._target.lower().replace("->", "-to-"))
        return f"{verb}-{target}{f'-{count}' if count > 1 else ''}"[:64]

    def _wrong(self, text: str) -> LaneError:
        return LaneError(self._target, self._text, text)
