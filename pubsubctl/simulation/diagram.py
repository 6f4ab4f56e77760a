"""Space-time diagrams of simulated runs: brokers and clients as lanes, messages as arrows.

A diagram has a lane per broker and client, and time runs downward: a row per event,
because waits of seconds lie beside latencies of microseconds. An arrow leaves the row of
the step that sent the message, and ends in the row of the step that received the message. A message
without a receiving step ends in a cross.
"""

import re
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from xml.sax.saxutils import escape

from brokerd.model.identity import Peer
from brokerd.protocols.interface import Deliver, MessageReceived, RedirectClient, Send
from brokerd.simulator.checks.protocol_checks import simulation_of
from brokerd.simulator.checks.step_text import Wording
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.simulator.world.trace import TracedStep, describe
from brokerd.units import SECOND_NS

LANE: Final = 150
ROW: Final = 18
_MARGIN: Final = 110
_TOP: Final = 44
_LANE: Final = re.compile(r"\S+[>:]\S+")
"""The choice of a lane by a run without a clock; the event of the lane is a step of its own."""
_SHORT: Final = 46
"""Characters of a label; the tooltip has the whole text."""


@dataclass(frozen=True, slots=True)
class Arrow:
    """A message from a row of one lane to a row of another.

    Attributes:
        end_row: -1 if the message was not received.
    """

    start: str
    start_row: int
    end: str
    end_row: int
    text: str


@dataclass(frozen=True, slots=True)
class Remark:
    """A text at a row: of a lane, or of the whole diagram for the lane ""."""

    lane: str
    row: int
    text: str
    is_violation: bool = False


@dataclass(slots=True)
class Diagram:
    """The lanes, rows and arrows of a run.

    Attributes:
        is_timed: False if the run has no clock.
        times_ns: the time of each row.
    """

    title: str
    is_timed: bool = True
    lanes: list[str] = field(default_factory=list)
    times_ns: list[int] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)


def diagram_of(
    cluster: SimulatedCluster, title: str, violations: Sequence[str], most_steps: int
) -> Diagram:
    """Return the diagram of the last steps of a run, with the violations below the last row.

    Args:
        cluster: after the run; its trace has kept all steps.
        most_steps: limit of steps with a visible event or effect.
    """
    assert cluster.trace is not None, "a run without a trace"
    words = simulation_of(cluster.protocol).make_wording(cluster)
    drawing = _Drawing(words, Diagram(title, not cluster.schedule.adversarial))
    seen = [step for step in cluster.trace.kept if drawing.is_visible(step)]
    for step in seen[-most_steps:]:
        drawing.add(step)
    drawing.end(violations)
    named = [*cluster.topology.brokers, *cluster.clients]
    used = {name for each in drawing.diagram.arrows for name in (each.start, each.end)}
    used |= {each.lane for each in drawing.diagram.remarks}
    drawing.diagram.lanes = [name for name in named if name in used]
    return drawing.diagram


class _Drawing:
    """A diagram in the making."""

    def __init__(self, words: Wording, diagram: Diagram) -> None:
        self.diagram = diagram
        self._words = words
        self._in_flight: dict[tuple[str, str], deque[tuple[int, str, str]]] = defaultdict(deque)

    def is_visible(self, step: TracedStep) -> bool:
        """Return True if a step has a row: a fault, a message, or an event in words."""
        if step.event is None:
            return not _LANE.fullmatch(step.place)
        if isinstance(step.event, MessageReceived):
            return True
        is_message = any(isinstance(each, Deliver | Send | RedirectClient) for each in step.effects)
        return is_message or bool(self._words.event(step.event))

    def add(self, step: TracedStep) -> None:
        """Add the rows of a step."""
        if step.event is None:
            self.diagram.remarks.append(Remark("", self._row(step), step.place))
            return
        row = self._row(step)
        if isinstance(step.event, MessageReceived):
            self._receive(step, step.event, row)
        elif event_text := self._words.event(step.event):
            self.diagram.remarks.append(Remark(step.place, row, event_text))
        is_first = not isinstance(step.event, MessageReceived) and not event_text
        for peer, message, text in self._sent(step):
            row = row if is_first else self._row(step)
            is_first = False
            self._send(step.place, peer, message, text, row)

    def end(self, violations: Sequence[str]) -> None:
        """Add the messages that were not received, and the violations."""
        for (start, end), messages in self._in_flight.items():
            self.diagram.arrows += [Arrow(start, row, end, -1, text) for row, _, text in messages]
        for violation in violations:
            self.diagram.times_ns.append(self.diagram.times_ns[-1] if self.diagram.times_ns else 0)
            self.diagram.remarks.append(Remark("", len(self.diagram.times_ns) - 1, violation, True))

    def _row(self, step: TracedStep) -> int:
        self.diagram.times_ns.append(step.now_ns)
        return len(self.diagram.times_ns) - 1

    def _sent(self, step: TracedStep) -> Iterator[tuple[Peer, Any, str]]:
        for effect in step.effects:
            text = self._words.effect(effect).removeprefix("-> ")
            if isinstance(effect, Deliver):
                yield effect.client, effect.item, text
            elif isinstance(effect, Send):
                yield effect.peer, effect.message, text.partition("  ")[2] or text
            elif isinstance(effect, RedirectClient):
                yield effect.client, None, text

    def _send(self, start: str, peer: Peer, message: Any, text: str, row: int) -> None:
        end = self._words.name(peer)
        if isinstance(peer, str):
            self.diagram.arrows.append(Arrow(start, row, end, row, text))
        else:
            self._in_flight[start, end].append((row, describe(message), text))

    def _receive(self, step: TracedStep, event: MessageReceived, row: int) -> None:
        start, end = self._words.name(event.peer), step.place
        if isinstance(event.peer, str):
            text = self._words.message(event.message)
            self.diagram.arrows.append(Arrow(start, row, end, row, text))
            return
        in_flight, wanted = self._in_flight[start, end], describe(event.message)
        place = next((n for n, each in enumerate(in_flight) if each[1] == wanted), None)
        if place is None:  # sent before the first row, or in several frames
            text = self._words.message(event.message)
            self.diagram.remarks.append(Remark(end, row, f"from {start}: {text}"))
            return
        # A session keeps the order, so earlier messages were lost with an earlier session.
        for sent_row, _, text in [in_flight.popleft() for _ in range(place)]:
            self.diagram.arrows.append(Arrow(start, sent_row, end, -1, text))
        sent_row, _, text = in_flight.popleft()
        self.diagram.arrows.append(Arrow(start, sent_row, end, row, text))


def write_svg(diagram: Diagram) -> str:
    width = 2 * _MARGIN + LANE * max(1, len(diagram.lanes) - 1) + 160
    height = _TOP + ROW * (len(diagram.times_ns) + 2)
    places = {name: _MARGIN + LANE * number for number, name in enumerate(diagram.lanes)}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
        f"<title>{escape(diagram.title)}</title>",
        _STYLE,
        f'<rect width="{width}" height="{height}" class="paper"/>',
    ]
    for name, x in places.items():
        parts.append(f'<text x="{x}" y="{_TOP - 20}" class="lane">{escape(name)}</text>')
        parts.append(f'<line x1="{x}" y1="{_TOP - 12}" x2="{x}" y2="{height - 8}" class="life"/>')
    last = None
    for row, time_ns in enumerate(diagram.times_ns):
        if diagram.is_timed and time_ns != last:
            text = f"{time_ns / SECOND_NS:.6f}"
            parts.append(f'<text x="6" y="{_y(row) + 4}" class="time">{text}</text>')
        last = time_ns
    parts += [part for each in diagram.arrows for part in _arrow(each, places)]
    parts += [part for each in diagram.remarks for part in _remark(each, places, width)]
    return "\n".join([*parts, "</svg>", ""])


def write_page(diagram: Diagram) -> str:
    title = escape(diagram.title)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        "<style>body{font-family:sans-serif;margin:1.5em}</style></head>\n"
        f"<body><h1>{title}</h1>\n<p>Time runs downward, one row per event, with seconds at the "
        "left. A red cross is a message that was not received. Point at an arrow to read the whole "
        f"message.</p>\n{write_svg(diagram)}</body></html>\n"
    )


_STYLE: Final = """<style>
.paper{fill:#fff}.lane{font-weight:bold;text-anchor:middle}.time{fill:#777;font-size:9px}
.life{stroke:#ccc}.arrow{stroke:#1f5fa8;fill:none}.data{stroke:#117733}
.lost{stroke:#cc3311;stroke-dasharray:4 2}.head{fill:#1f5fa8}.label{fill:#333;font-size:9px}
.fault{fill:#222;font-weight:bold}.violation{fill:#cc3311;font-weight:bold}.dot{fill:#555}
.band.fault{fill:#eee}.band.violation{fill:#fbeae7}
</style>"""


def _y(row: int) -> int:
    return _TOP + ROW * row + ROW // 2


def _arrow(arrow: Arrow, places: dict[str, int]) -> Iterator[str]:
    x1, x2, y1 = places[arrow.start], places[arrow.end], _y(arrow.start_row)
    is_lost = arrow.end_row < 0
    y2 = _y(arrow.start_row + 1 if is_lost else arrow.end_row)
    if is_lost:
        x2 = x1 + (x2 - x1) * 2 // 3
    side = 1 if x2 > x1 else -1
    tip = x2 - 5 * side
    yield f"<g><title>{escape(f'{arrow.start} to {arrow.end}: {arrow.text}')}</title>"
    yield f'<line x1="{x1}" y1="{y1}" x2="{tip}" y2="{y2}" class="{_kind(arrow)}"/>'
    if is_lost:
        cross = f"M{tip - 4} {y2 - 4}l8 8m0 -8l-8 8"
        yield f'<path d="{cross}" class="lost" style="stroke-dasharray:none"/>'
    else:
        yield f'<path d="M{x2} {y2}l{-6 * side} -3v6z" class="head"/>'
    anchor = "start" if side > 0 else "end"
    yield (
        f'<text x="{x1 + 6 * side}" y="{y1 - 3}" text-anchor="{anchor}" class="label">'
        f"{escape(_cut(arrow.text))}</text></g>"
    )


def _kind(arrow: Arrow) -> str:
    if arrow.end_row < 0:
        return "lost"
    return "arrow data" if arrow.text.startswith("delivers") else "arrow"


def _remark(remark: Remark, places: dict[str, int], width: int) -> Iterator[str]:
    y = _y(remark.row)
    if not remark.lane:
        kind = "violation" if remark.is_violation else "fault"
        yield f'<rect x="62" y="{y - 8}" width="{width - 66}" height="15" class="band {kind}"/>'
        yield f'<text x="66" y="{y + 4}" class="{kind}">{escape(remark.text)}</text>'
        return
    x = places[remark.lane]
    yield f'<g><title>{escape(remark.text)}</title><circle cx="{x}" cy="{y}" r="3" class="dot"/>'
    yield f'<text x="{x + 7}" y="{y + 3}" class="label">{escape(_cut(remark.text))}</text></g>'


def _cut(text: str) -> str:
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 1]}…"
