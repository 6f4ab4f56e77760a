"""Where everything goes in the two drawings of the report: the tree of brokers, and the faults.

Only places and words are decided here; the templates draw them. A fault's effect is never shown
by colour alone: each has a sign and a word of its own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from results.report.reading import Row, RunStory
from results.report.words import SECOND_NS, plural, seconds
from results.rules.fault_log import FAULT_STAMPS
from results.rules.faults import FaultSpan, fault_spans
from results.tables.manifest import Run

MOST_BROKERS = 150
"""More are not drawn: nobody could read them."""

Size = Literal["wide", "narrow"]
COLUMNS = {"wide": 200.0, "narrow": 112.0}
ROW, LINE = 46, 17
NODE_HEIGHT = 30
LETTER = 7.7
LONGEST_NAME, LONGEST_PREDICATE, MOST_SUBSCRIPTIONS = 14, 46, 3

# From harmless to worst: what is shown where several happened to one place.
FATES = ("untouched", "limited", "held", "cut", "restarted", "gone")


@dataclass(frozen=True)
class Node:
    """A broker in the picture; x and y are its middle."""

    name: str
    shown: str
    x: float
    y: float
    width: float
    fate: str
    notes: tuple[str, ...]
    subscriptions: tuple[tuple[str, str], ...]
    more_subscriptions: int


@dataclass(frozen=True)
class Edge:
    """A link in the picture, from right edge to left edge."""

    x1: float
    y1: float
    x2: float
    y2: float
    fate: str
    note: str

    @property
    def middle(self) -> tuple[float, float]:
        return (self.x1 + self.x2) / 2, (self.y1 + self.y2) / 2


@dataclass(frozen=True)
class TreePicture:
    """The tree of brokers from left to right, publishers' end first."""

    width: float
    height: float
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    fates: tuple[str, ...]
    words: str


def tree_picture(story: RunStory, size: Size = "wide") -> TreePicture | None:
    """The brokers, what happened to each, and the clients; None when there are too many.

    Narrow, subscriptions are counted instead of named.
    """
    run = story.run
    if len(run.topology["brokers"]) > MOST_BROKERS:
        return None
    return _TreeLayout(story, size).picture()


class _TreeLayout:
    """Each leaf has rows of its own, each other broker stands amid its children."""

    def __init__(self, story: RunStory, size: Size) -> None:
        self._story = story
        self._first, self._column = (78.0 if size == "wide" else 46.0), COLUMNS[size]
        self._names_subscriptions = size == "wide"
        self._run = story.run
        self._publishers = _publishers(story.run)
        self._root = next(iter(self._publishers), story.run.topology["brokers"][0])
        self._neighbours: dict[str, list[str]] = {b: [] for b in story.run.topology["brokers"]}
        for a, b in story.run.links:
            self._neighbours[a].append(b)
            self._neighbours[b].append(a)
        self._spans = fault_spans(story.run.fault_rows, _end_ns(story.run))
        self._places: dict[str, tuple[float, float]] = {}
        self._edges: list[tuple[str, str]] = []
        self._children: dict[str, list[str]] = {}

    def picture(self) -> TreePicture:
        height = self._place_all()
        nodes = [self._node(broker) for broker in self._places]
        by_name = {node.name: node for node in nodes}
        edges = [self._edge(by_name[a], by_name[b]) for a, b in self._edges]
        margin = max(map(_label_width, nodes))
        right = max(node.x + max(node.width, _notes_width(node)) / 2 for node in nodes)
        used = {node.fate for node in nodes} | {edge.fate for edge in edges}
        return TreePicture(
            width=right + margin + 6,
            height=height,
            nodes=tuple(nodes),
            edges=tuple(edges),
            fates=tuple(fate for fate in FATES if fate in used),
            words=_tree_words(nodes, edges, self._root),
        )

    def _place_all(self) -> float:
        """Give each broker its place; returns the height that takes. A stack, not a call each:
        a chain may be longer than Python's calls go deep."""
        order: list[tuple[str, int]] = []
        waiting: list[tuple[str, str, int]] = [(self._root, "", 0)]
        while waiting:
            broker, parent, depth = waiting.pop()
            order.append((broker, depth))
            self._children[broker] = [b for b in self._neighbours[broker] if b != parent]
            waiting += [(child, broker, depth + 1) for child in reversed(self._children[broker])]
        y: dict[str, float] = {}
        bottom = 14.0
        for broker, _ in order:
            if not self._children[broker]:
                height = self._leaf_height(broker)
                y[broker] = bottom + height / 2
                bottom += height
        for broker, _ in reversed(order):
            if children := self._children[broker]:
                y[broker] = (y[children[0]] + y[children[-1]]) / 2
        for broker, depth in order:
            self._places[broker] = self._first + depth * self._column, y[broker]
            self._edges += [(broker, child) for child in self._children[broker]]
        below = max(y[b] + NODE_HEIGHT / 2 + LINE * len(self._notes(b)) for b in y)
        return max(bottom, below) + 14

    def _leaf_height(self, broker: str) -> float:
        rows = min(len(self._subscriptions(broker)), MOST_SUBSCRIPTIONS + 1)
        rows = rows if self._names_subscriptions else 0
        notes = NODE_HEIGHT + 2 * LINE * len(self._notes(broker))
        return max(ROW, 12.0 + 2 * LINE * rows, 12.0 + notes)

    def _subscriptions(self, broker: str) -> list[tuple[str, str]]:
        return [
            (row.sub_id, row.predicate) for row in self._story.subscriptions if row.broker == broker
        ]

    def _notes(self, broker: str) -> list[str]:
        notes = []
        for count, rate in self._publishers.get(broker, ()):
            notes += [f"{count}, {rate}"] if self._names_subscriptions else [count, rate]
        mine = self._subscriptions(broker)
        if mine and not self._named(broker):
            notes.append(plural(len(mine), "subscription"))
        return notes + [_span_words(span) for span in self._of(broker)]

    def _named(self, broker: str) -> bool:
        """Whether there is room beside a broker for its subscriptions."""
        return self._names_subscriptions and not self._children[broker]

    def _of(self, *targets: str) -> list[FaultSpan]:
        found = {*targets}
        return [s for s in self._spans if s.kind != "back" and not found.isdisjoint(s.parts)]

    def _node(self, broker: str) -> Node:
        x, y = self._places[broker]
        shown = shortened(broker, LONGEST_NAME)
        spans = self._of(broker)
        fates = ["untouched"]
        for span in spans:
            fates.append(
                {"down": "restarted" if span.is_over else "gone"}.get(span.kind, span.kind)
            )
        mine = self._subscriptions(broker)
        return Node(
            name=broker,
            shown=shown,
            x=x,
            y=y,
            width=max(46.0, len(shown) * LETTER + 24 + (18 if max(map(FATES.index, fates)) else 0)),
            fate=max(fates, key=FATES.index),
            notes=tuple(self._notes(broker)),
            subscriptions=tuple(
                (shortened(name, LONGEST_PREDICATE), shortened(text, LONGEST_PREDICATE))
                for name, text in mine[:MOST_SUBSCRIPTIONS]
            )
            if self._named(broker)
            else (),
            more_subscriptions=max(0, len(mine) - MOST_SUBSCRIPTIONS) if self._named(broker) else 0,
        )

    def _edge(self, a: Node, b: Node) -> Edge:
        ends = (a.name, b.name), (b.name, a.name)
        spans = self._of(*(f"{x}{arrow}{y}" for x, y in ends for arrow in ("-", "->")))
        fates = [
            "cut" if span.kind == "down" or span.verb == "cut" else span.kind for span in spans
        ]
        return Edge(
            a.x + a.width / 2,
            a.y,
            b.x - b.width / 2,
            b.y,
            max(["untouched", *fates], key=FATES.index),
            "; ".join(_span_words(span) for span in spans),
        )


def _label_width(node: Node) -> float:
    texts = [text for pair in node.subscriptions for text in pair]
    return max((len(text) * 6.9 + 22 for text in texts), default=0)


def _notes_width(node: Node) -> float:
    return max((len(note) * 6.3 for note in node.notes), default=0)


def _publishers(run: Run) -> dict[str, list[tuple[str, str]]]:
    """Per broker, how many publishers and how fast."""
    found: dict[str, list[tuple[str, str]]] = {}
    for entry in run.workload.get("publishers", ()):
        for broker in [entry["at"]] if isinstance(entry["at"], str) else entry["at"]:
            rate = entry.get("rate", "?")
            found.setdefault(broker, []).append(
                (
                    plural(entry.get("count", 1), "publisher"),
                    "full speed" if rate == "max" else f"{rate} each",
                )
            )
    return {broker: notes for broker, notes in found.items() if broker in run.topology["brokers"]}


def _span_words(span: FaultSpan) -> str:
    start, end = seconds(span.from_ns, 1), seconds(span.to_ns, 1)
    if span.kind == "down":
        return f"{'killed' if span.verb == 'kill' else span.verb} {start} – {end} s"
    return f"{span.verb} {start} – {end} s"


def _tree_words(nodes: Sequence[Node], edges: Sequence[Edge], root: str) -> str:
    """The picture for those who cannot see it."""
    hit = [f"{node.name} ({node.fate})" for node in nodes if node.fate != "untouched"]
    hit += [f"a link ({edge.note})" for edge in edges if edge.fate != "untouched"]
    links = plural(len(edges), "link")
    told = f"Tree of {plural(len(nodes), 'broker')} and {links}, from {root} outwards."
    return f"{told} Touched by faults: {', '.join(hit)}." if hit else f"{told} None was touched."


def shortened(text: str, length: int) -> str:
    """The text, cut off with … where it is longer."""
    return text if len(text) <= length else text[: length - 1] + "…"


# --- Faults over time -----------------------------------------------------------------------

LANES_WIDTHS = {"wide": 960.0, "narrow": 340.0}
LANES_LEFTS = {"wide": 112.0, "narrow": 70.0}
LONGEST_TARGETS = {"wide": 11, "narrow": 6}
LANES_RIGHT, LANES_TOP = 14.0, 46.0
LANE_HEIGHT, BAR_HEIGHT = 92.0, 24.0
LABEL_LETTER, MARK_WIDTH = 6.7, 11.5
LANE_KINDS = ("limited", "held", "cut", "down", "back")

STAMP_NAMES: Mapping[str, str] = {
    name: name.removeprefix("t_").removesuffix("_ns").replace("_", " ") for name in FAULT_STAMPS
}


@dataclass(frozen=True)
class Bar:
    """A time in which a fault had an effect; the label stands above where it does not fit in."""

    x: float
    width: float
    kind: str
    label: str
    label_x: float
    inside: bool
    words: str


@dataclass(frozen=True)
class Mark:
    """A stamp of a fault."""

    x: float
    stage: str
    words: str


@dataclass(frozen=True)
class Risk:
    """From the start of a time of risk to the last delivery that was at risk in it."""

    x: float
    width: float
    label: str
    label_x: float
    anchor: str
    is_whole: bool


@dataclass(frozen=True)
class Lane:
    """What happened to one broker or link."""

    target: str
    shown: str
    y: float
    bars: tuple[Bar, ...]
    marks: tuple[Mark, ...]
    risks: tuple[Risk, ...]


@dataclass(frozen=True)
class LanesPicture:
    """All faults of a run on its time line."""

    width: float
    height: float
    left: float
    right: float
    ticks: tuple[tuple[float, str], ...]
    lanes: tuple[Lane, ...]
    kinds: tuple[str, ...]
    words: str


def lanes_picture(story: RunStory, size: Size = "wide") -> LanesPicture | None:
    """The faults over time, a lane per broker or link; None where none was applied."""
    run = story.run
    full_width, axis_left = LANES_WIDTHS[size], LANES_LEFTS[size]
    axis_right = full_width - LANES_RIGHT
    rows = [row for row in run.fault_rows if row.get("t_applied_ns") is not None]
    if not rows:
        return None
    end_ns = _end_ns(run)
    start_ns = min(0, *(row["t_applied_ns"] for row in rows))
    scale = (axis_right - axis_left) / max(1, end_ns - start_ns)

    def x(t_ns: int) -> float:
        shown_ns = max(start_ns, min(t_ns, end_ns))
        return float(round(axis_left + (shown_ns - start_ns) * scale, 2))

    spans = fault_spans(rows, end_ns)
    lanes = [
        Lane(
            target=target,
            shown=shortened(target, LONGEST_TARGETS[size]),
            y=LANES_TOP + place * LANE_HEIGHT,
            bars=tuple(_bars([span for span in spans if span.target == target], x, axis_right)),
            marks=tuple(_marks([row for row in rows if row["target"] == target], x, axis_right)),
            risks=tuple(
                _risk(recovery, x, end_ns, full_width)
                for recovery in story.verdict.get("recoveries", ())
                if recovery["target"] == target and recovery["at_risk"]
            ),
        )
        for place, target in enumerate(dict.fromkeys(row["target"] for row in rows))
    ]
    kinds = {bar.kind for lane in lanes for bar in lane.bars}
    return LanesPicture(
        width=full_width,
        height=LANES_TOP + len(lanes) * LANE_HEIGHT + 24,
        left=axis_left,
        right=axis_right,
        ticks=tuple(
            (x(t_ns), f"{t_ns // SECOND_NS}")
            for t_ns in _ticks_ns(start_ns, end_ns, full_width / 80)
        ),
        lanes=tuple(lanes),
        kinds=tuple(kind for kind in LANE_KINDS if kind in kinds),
        words="; ".join(map(_span_in_full, spans)),
    )


def _bars(
    spans: Sequence[FaultSpan], x: Callable[[int], float], axis_right: float
) -> Iterator[Bar]:
    free_above = 0.0
    for span in spans:
        left = x(span.from_ns)
        width = max(2.5, round(x(span.to_ns) - left, 2))
        lasted = f"{seconds(span.to_ns - span.from_ns, 2)} s"
        label = {"back": f"back after {lasted}", "down": f"down {lasted}"}.get(
            span.kind, f"{span.verb} {lasted}"
        )
        if span.verb == "cut":
            label = f"cut {lasted}"
        needed = len(label) * LABEL_LETTER + 6
        inside = needed <= width
        label_x = round(left + width / 2, 2)
        if not inside:
            label_x = round(min(left, axis_right + LANES_RIGHT - needed), 2)
            if label_x < free_above:
                label = ""
            else:
                free_above = label_x + needed
        kind = "cut" if span.verb == "cut" else span.kind
        yield Bar(left, width, kind, label, label_x, inside, _span_in_full(span))


def _marks(rows: Sequence[Row], x: Callable[[int], float], axis_right: float) -> Iterator[Mark]:
    """Stamps in order of time, those that would overlap side by side."""
    stamps = sorted(
        (row[name], place, FAULT_STAMPS.index(name), row["verb"])
        for place, row in enumerate(rows)
        for name in FAULT_STAMPS
        if row.get(name) is not None
    )
    places: list[float] = []
    for t_ns, *_ in stamps:
        places.append(max([x(t_ns), *(place + MARK_WIDTH for place in places[-1:])]))
    end = axis_right + LANES_RIGHT - MARK_WIDTH / 2
    for number in reversed(range(len(places))):
        places[number] = round(min(places[number], end), 2)
        end = places[number] - MARK_WIDTH
    for place, (t_ns, _, number, verb) in zip(places, stamps, strict=True):
        stage = STAMP_NAMES[FAULT_STAMPS[number]]
        yield Mark(place, stage, f"{verb} {stage} at {seconds(t_ns)} s")


def _risk(recovery: Row, x: Callable[[int], float], end_ns: int, full_width: float) -> Risk:
    to_ns = end_ns if recovery["to_ns"] is None else recovery["to_ns"]
    left = x(recovery["from_ns"])
    right = x(max(to_ns, to_ns + (recovery["recovered_after_ns"] or 0)))
    at_risk, recovered = recovery["at_risk"], recovery["recovered"]
    is_whole = recovered == at_risk
    label = f"{at_risk:,} at risk, " + (
        "all arrived" if is_whole else f"{at_risk - recovered:,} lost"
    )
    needed = len(label) * LABEL_LETTER + 12
    anchor = "start" if right + needed < full_width else "end"
    label_x = right + 8 if anchor == "start" else left - 8
    return Risk(left, max(3.0, right - left), label, label_x, anchor, is_whole)


def _ticks_ns(start_ns: int, end_ns: int, most: float) -> Iterator[int]:
    """At most so many moments, on round seconds."""
    steps = [base * 10**power for power in range(6) for base in (1, 2, 5)]
    wanted = (end_ns - start_ns) / SECOND_NS / most
    step_ns = next((step for step in steps if step >= wanted), steps[-1]) * SECOND_NS
    t_ns = -(-start_ns // step_ns) * step_ns
    while t_ns <= end_ns:
        yield t_ns
        t_ns += step_ns


def _span_in_full(span: FaultSpan) -> str:
    return f"{span.verb} {span.target}, {seconds(span.from_ns)} to {seconds(span.to_ns)} s"


def _end_ns(run: Run) -> int:
    """Where the time line ends: with the measure phase, or the last stamp of a fault after it."""
    stamps = [row.get(name) or 0 for row in run.fault_rows for name in FAULT_STAMPS]
    return int(max(SECOND_NS, run.phase("measure").to_ns, *stamps))
