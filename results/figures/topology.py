"""The brokers with placement, load and faults: figure `run.topology`.

A broker is a disc with the number of its host; hosts of a failure domain have shades of a common
hue. A faulty element has a mark and an outline, so that no meaning depends on colour alone. A small
number of brokers is drawn from left to right with the faults of each; a large number is drawn in
rings around the middle broker.
"""

import io
import math
from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from brokerd.units import SECOND_NS
from results.figures.context import FigureData, figure_data, wiring_of
from results.figures.drawing import adapt_to_dark_pages, house_style
from results.figures.style import (
    INK,
    MUTED,
    PAPER,
    WIDTHS_INCHES,
    Width,
    footer,
    literal,
    new_figure,
    run_style,
    title,
)
from results.figures.topology_key import (
    FATE_DASHES,
    FATE_INKS,
    FATE_MARKS,
    FATES,
    draw_key,
    host_inks,
    key_lines,
)
from results.rules.fault_log import FaultSpan, fault_spans
from results.tables.json_files import read_json
from results.tables.manifest import Run

MOST_LEAVES_IN_ROWS = 24
MOST_BROKERS = 400
MOST_NOTES = 3
NOTE_INCHES = 0.125
LETTER_INCHES = 0.054
LONGEST_NOTE = 44

Point = tuple[float, float]


def collect(run: Run) -> FigureData:
    """Return brokers and links, with placement and faults."""
    hosts, domains = _placement(run)
    end_ns = run.phase("drain").to_ns or run.phase("measure").to_ns
    spans = fault_spans(run.fault_rows, end_ns)
    brokers = run.topology["brokers"]
    rows = topology_rows(brokers, run.links, hosts, domains, spans, _clients(run))
    about = {
        "run_id": run.run_id,
        "topology": run.topology.get("name"),
        "protocol": run.protocol,
        "delta": run.delta,
        "wiring": run.words.wiring,
        "brokers": len(run.topology["brokers"]),
        "hosts": len({*hosts.values()}),
        "root": _root(run),
        "elsewhere": [_words_of(span) for span in spans if not _is_drawn(span, run)],
    }
    return figure_data("run.topology", about, rows)


def topology_rows(
    brokers: Sequence[str],
    links: Sequence[tuple[str, str]],
    hosts: Mapping[str, str],
    domains: Mapping[str, str],
    spans: Sequence[FaultSpan] = (),
    clients: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Return a row per broker and per link.

    Args:
        hosts: by broker; brokers may be missing.
        domains: failure domain by host; a missing host is a separate domain.
        clients: in words, by broker; brokers may be missing.
    """
    rows = []
    for broker in brokers:
        fate, notes = _fate([span for span in spans if broker in span.parts])
        host = hosts.get(broker, "")
        row = _row("broker", broker, "", host, domains.get(host, host), fate, notes)
        rows.append({**row, "clients": "; ".join(clients.get(broker, ()))})
    for a, b in links:
        targets = {f"{x}{arrow}{y}" for x, y in ((a, b), (b, a)) for arrow in ("-", "->")}
        fate, notes = _fate([s for s in spans if not targets.isdisjoint(s.parts)], is_link=True)
        rows.append(_row("link", a, b, "", "", fate, notes))
    return rows


def topology_svg(
    name: str,
    brokers: Sequence[str],
    links: Sequence[tuple[str, str]],
    hosts: Mapping[str, str],
    domains: Mapping[str, str],
) -> str:
    """Return the planned placement of a topology before a run: the content of an SVG file."""
    about = {
        "topology": name,
        "hosts": len({*hosts.values()}),
        "root": brokers[0],
        "elsewhere": [],
    }
    data = figure_data("run.topology", about, topology_rows(brokers, links, hosts, domains))
    with run_style():
        figure = paint(data)
    stream = io.BytesIO()
    with house_style():
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return adapt_to_dark_pages(stream.getvalue().decode("utf-8"))


def paint(data: FigureData, width: Width = "wide") -> Figure:
    """Paint the brokers by host and failure domain, with clients and faults."""
    about = data.about
    rows = [{key: "" if value is None else str(value) for key, value in row.items()}
            for row in data.records()]  # fmt: skip
    brokers = [row for row in rows if row["kind"] == "broker"]
    links = [row for row in rows if row["kind"] == "link"]
    subject = f"{about['topology']}: {len(brokers)} brokers"
    if about["hosts"]:
        subject += f" on {about['hosts']} host{'s' * (about['hosts'] != 1)}"
    if len(brokers) > MOST_BROKERS:
        figure = new_figure(width, 0.8)
        title(figure, 0.01, f"{subject}: too many to be drawn")
        return figure
    layout = _Layout([row["name"] for row in brokers], links, about["root"])
    inches = WIDTHS_INCHES[width]
    is_round = len(layout.leaves) > MOST_LEAVES_IN_ROWS
    inks = host_inks(brokers)
    key = key_lines(inks, rows, inches)
    foot = 0.30 + 0.19 * len(key)
    drawn = inches - 0.3 if is_round else 0.55 * len(layout.leaves) + 0.4
    figure = new_figure(width, 0.42 + drawn + foot)
    height = 0.42 + drawn + foot
    axes = figure.add_axes((0.0, foot / height, 1.0, drawn / height))
    axes.set_axis_off()
    axes.set_xlim(0, inches)
    axes.set_ylim(0, drawn)
    for row in brokers:
        row["clients"] = _client_notes(row["clients"], width)
    beside = max(len(note) for row in brokers for note in row["clients"].split("; "))
    right = max({"wide": 1.5, "narrow": 1.0}[width], 0.4 + LETTER_INCHES * beside)
    left = {"wide": 0.75, "narrow": 0.4}[width]
    places = (
        layout.around(inches, drawn)
        if is_round
        else layout.place_in_rows(left, inches - right, drawn)
    )
    size = _disc_inches(len(layout.leaves), inches) if is_round else 0.27
    for row in links:
        _draw_link(axes, row, places[row["name"]], places[row["other"]], size, named=not is_round)
    middle = (inches / 2, drawn / 2) if is_round else None
    for row in brokers:
        is_leaf = not layout.children[row["name"]]
        _draw_broker(axes, row, places[row["name"]], size, inks, middle, is_leaf=is_leaf)
    title(figure, 0.012, subject)
    draw_key(figure, key, foot, inches)
    if about.get("run_id"):
        more = f"; also {', '.join(about['elsewhere'])}" if about["elsewhere"] else ""
        wiring = f", {wiring_of(about)}" if wiring_of(about) else ""
        subtitle = f"{about['protocol']}{wiring}; run {about['run_id']}{more}"
        footer(figure, subtitle if width == "wide" else about["run_id"])
    return figure


def metrics(data: FigureData) -> dict[str, float]:
    """Return the number of faulty brokers and links."""
    touched = [row for row in data.records() if row["fate"] != "untouched"]
    return {
        "brokers_touched": float(sum(row["kind"] == "broker" for row in touched)),
        "links_touched": float(sum(row["kind"] == "link" for row in touched)),
    }


class _Layout:
    """A place for each broker, by the shortest paths from the root; other links cross the tree."""

    def __init__(self, brokers: Sequence[str], links: Sequence[Mapping[str, str]], root: str):
        neighbours: dict[str, list[str]] = {broker: [] for broker in brokers}
        for row in links:
            neighbours[row["name"]].append(row["other"])
            neighbours[row["other"]].append(row["name"])
        self._neighbours = neighbours
        self._depths: dict[str, int] = {}
        self.children: dict[str, list[str]] = {broker: [] for broker in brokers}
        self.order = [
            broker
            for start in dict.fromkeys((root, *brokers))
            if start not in self._depths
            for broker in self._outwards(start)
        ]
        self.leaves = [broker for broker in self.order if not self.children[broker]]
        self.depth = max(self._depths.values())
        # The place of a broker across the tree: leaves in sequence, others amid their leaves.
        self.across = {leaf: float(place) for place, leaf in enumerate(self.leaves)}
        for broker in reversed(self.order):
            if below := self.children[broker]:
                self.across[broker] = (self.across[below[0]] + self.across[below[-1]]) / 2

    def _outwards(self, start: str) -> list[str]:
        """Return all brokers reachable from here, each behind its parent."""
        self._depths[start] = 0
        reached = deque([start])
        while reached:
            broker = reached.popleft()
            for other in self._neighbours[broker]:
                if other not in self._depths:
                    self._depths[other] = self._depths[broker] + 1
                    self.children[broker].append(other)
                    reached.append(other)
        order: list[str] = []
        stack = [start]
        while stack:
            broker = stack.pop()
            order.append(broker)
            stack += reversed(self.children[broker])
        return order

    def place_in_rows(self, left: float, right: float, height: float) -> dict[str, Point]:
        """Return places from left to right, with the root on the left."""
        column = (right - left) / max(1, self.depth)
        row = height / max(1, len(self.leaves))
        return {
            broker: (
                left + self._depths[broker] * column,
                height - (self.across[broker] + 0.5) * row,
            )
            for broker in self.order
        }

    def around(self, width: float, height: float) -> dict[str, Point]:
        """Return places around the root, with a ring per level."""
        radius = min(width, height) / 2 - 0.42
        turn = 2 * math.pi / len(self.leaves)
        found = {}
        for broker in self.order:
            angle = math.pi / 2 - self.across[broker] * turn
            reach = radius * self._depths[broker] / max(1, self.depth)
            found[broker] = (
                width / 2 + reach * math.cos(angle),
                height / 2 + reach * math.sin(angle),
            )
        return found


def _disc_inches(leaves: int, inches: float) -> float:
    """Return the largest size of discs that fit into the outer ring."""
    return max(0.05, min(0.25, math.pi * (inches - 1.2) / leaves * 0.72))


def _draw_link(
    axes: Axes, row: Mapping[str, str], a: Point, b: Point, size: float, *, named: bool
) -> None:
    fate = row["fate"]
    ink = FATE_INKS.get(fate, MUTED)
    axes.plot(
        [a[0], b[0]],
        [a[1], b[1]],
        color=ink,
        linewidth=1.8 if fate in FATE_INKS else 0.9,
        linestyle=FATE_DASHES.get(fate, "-") if fate in FATE_INKS else "-",
        zorder=2 if fate in FATE_INKS else 1,
        solid_capstyle="butt",
    )
    if fate not in FATE_INKS:
        return
    x, y = (a[0] + b[0]) / 2, (a[1] + b[1]) / 2
    _mark(axes, fate, (x, y), max(4.5, min(8.0, size * 26)))
    if named:
        lines = "\n".join(row["faults"].split("; ")[:MOST_NOTES])
        axes.text(x, y - 0.12, lines, fontsize=6.5, color=ink, ha="center", va="top", zorder=6)


def _draw_broker(
    axes: Axes,
    row: Mapping[str, str],
    place: Point,
    size: float,
    inks: Mapping[str, tuple[int, str]],
    middle: Point | None,
    *,
    is_leaf: bool,
) -> None:
    x, y = place
    fate = row["fate"]
    number, ink = inks.get(row["host"], (0, MUTED))
    points = size * 72
    outline = FATE_INKS.get(fate, PAPER)
    axes.plot(
        [x], [y],
        marker="o", markersize=points, markerfacecolor=ink, markeredgecolor=outline,
        markeredgewidth=min(2.4, points / 7) if fate in FATE_INKS else 0.6,
        linestyle="none", zorder=4,
    )  # fmt: skip
    if number and points >= 8:
        font = max(4.0, min(8.5, points * 0.5))
        axes.text(
            x, y - 0.005, str(number), fontsize=font, color=PAPER, weight="bold", ha="center",
            va="center_baseline", zorder=5,
        )  # fmt: skip
    away = (0.64, 0.64)
    if middle is None:
        _name_above(axes, row, place, size, is_leaf=is_leaf)
    else:
        dx, dy = x - middle[0], y - middle[1]
        reach = math.hypot(dx, dy)
        outwards = (dx / reach, dy / reach) if reach > 0.01 else (0.0, 0.0)
        _name_around(axes, row, place, size, outwards, is_leaf=is_leaf)
        away = (outwards[1] * 0.9, -outwards[0] * 0.9) if reach > 0.01 else away
    if fate in FATE_INKS:
        at = (x + size * 0.75 * away[0], y + size * 0.75 * away[1])
        _mark(axes, fate, at, max(4.0, min(7.5, points * 0.42)))


def _name_above(
    axes: Axes, row: Mapping[str, str], place: Point, size: float, *, is_leaf: bool
) -> None:
    """Write the name above the disc, and clients and faults beside or below."""
    x, y = place
    axes.text(
        x, y + size / 2 + 0.035, row["name"], fontsize=8.5, weight="bold", color=INK,
        ha="center", va="bottom", zorder=5,
    )  # fmt: skip
    clients, faults = (row[key].split("; ") if row[key] else [] for key in ("clients", "faults"))
    lines = [(words, MUTED) for words in _first(clients)]
    lines += [(words, FATE_INKS[row["fate"]]) for words in _first(faults)]
    if is_leaf:
        left, top = x + size / 2 + 0.1, y + NOTE_INCHES * len(lines) / 2
    else:
        left, top = x, y - size / 2 - 0.03
    for number, (words, ink) in enumerate(lines):
        axes.text(
            left, top - NOTE_INCHES * number, literal(words), fontsize=6.5, color=ink,
            ha="left" if is_leaf else "center", va="top", zorder=6,
            bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.6, "alpha": 0.85},
        )  # fmt: skip


def _first(notes: Sequence[str]) -> list[str]:
    more = [f"and {len(notes) - MOST_NOTES} more"] if len(notes) > MOST_NOTES else []
    return [*notes[:MOST_NOTES], *more]


def _client_notes(notes: str, width: Width) -> str:
    """Return notes on clients, each shortened to the available room."""
    if width == "narrow":
        return "; ".join(note.partition(", ")[0].partition(":")[0] for note in notes.split("; "))
    return "; ".join(
        note if len(note) <= LONGEST_NOTE else note[: LONGEST_NOTE - 1] + "…"
        for note in notes.split("; ")
    )


def _name_around(
    axes: Axes,
    row: Mapping[str, str],
    place: Point,
    size: float,
    outwards: Point,
    *,
    is_leaf: bool,
) -> None:
    """Write names of leaves outside, outwards; names of others beside the disc, away from links."""
    style: dict[str, Any] = {
        "fontsize": max(3.5, min(7.0, size * 34)),
        "color": FATE_INKS.get(row["fate"], INK),
        "weight": "bold" if row["fate"] in FATE_INKS else "normal",
        "zorder": 6,
    }
    dx, dy = outwards
    away = size / 2 + 0.035
    if not is_leaf:
        across = (-dy, dx) if dx or dy else (0.0, 1.0)
        axes.text(
            place[0] + across[0] * away, place[1] + across[1] * away, row["name"],
            ha="center" if abs(across[0]) < 0.5 else "left" if across[0] > 0 else "right",
            va="center" if abs(across[1]) < 0.5 else "bottom" if across[1] > 0 else "top",
            bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.2, "alpha": 0.8}, **style,
        )  # fmt: skip
        return
    degrees = math.degrees(math.atan2(dy, dx))
    flipped = abs(degrees) > 90
    axes.text(
        place[0] + dx * away, place[1] + dy * away, row["name"],
        rotation=degrees + 180 if flipped else degrees, rotation_mode="anchor",
        ha="right" if flipped else "left", va="center_baseline", **style,
    )  # fmt: skip


def _mark(axes: Axes, fate: str, place: Point, points: float) -> None:
    axes.plot(
        [place[0]], [place[1]],
        marker=FATE_MARKS[fate], markersize=points, markerfacecolor=FATE_INKS[fate],
        markeredgecolor=FATE_INKS[fate] if FATE_MARKS[fate] == "x" else PAPER,
        markeredgewidth=1.8 if FATE_MARKS[fate] == "x" else 0.7, linestyle="none", zorder=7,
    )  # fmt: skip


def _fate(spans: Sequence[FaultSpan], *, is_link: bool = False) -> tuple[str, list[str]]:
    """Return the worst fate of a target, and all its faults in words."""
    fates = ["untouched"]
    for span in spans:
        if span.kind == "down":
            fates.append("cut" if is_link else "restarted" if span.is_over else "gone")
        elif span.kind != "back":
            fates.append("cut" if span.verb == "cut" else span.kind)
    words = [_words_of(span, with_target=False) for span in spans if span.kind != "back"]
    return max(fates, key=FATES.index), words


def _words_of(span: FaultSpan, *, with_target: bool = True) -> str:
    start, end = span.from_ns / SECOND_NS, span.to_ns / SECOND_NS
    target = f" {span.target}" if with_target else ""
    return f"{span.verb}{target} {start:.1f}–{end:.1f} s"


def _is_drawn(span: FaultSpan, run: Run) -> bool:
    drawn = {*run.topology["brokers"]}
    for a, b in run.links:
        drawn |= {f"{a}-{b}", f"{b}-{a}", f"{a}->{b}", f"{b}->{a}"}
    return not drawn.isdisjoint(span.parts)


def _row(
    kind: str, name: str, other: str, host: str, domain: str, fate: str, notes: Sequence[str]
) -> dict[str, Any]:
    return {
        "kind": kind,
        "name": name,
        "other": other,
        "host": host,
        "failure_domain": domain,
        "fate": fate,
        "faults": "; ".join(notes),
        "clients": "",
    }


def _placement(run: Run) -> tuple[dict[str, str], dict[str, str]]:
    """Return host by broker, and failure domain by host; empty for runs without a placement."""
    path = run.folder / "spec" / "placement.json"
    if not path.is_file():
        return {}, {}
    placement = read_json(path)
    hosts = {str(row["broker"]): str(row["host"]) for row in placement.get("brokers", ())}
    return hosts, {**placement.get("failure_domains", {})}


def _clients(run: Run) -> dict[str, list[str]]:
    """Return the publishers and subscribers at each broker, in words."""
    found: dict[str, list[str]] = {}
    for key, noun in (("publishers", "publisher"), ("subscribers", "subscription")):
        for entry in run.workload.get(key, ()):
            count = entry.get("count", 1)
            words = f"{count} {noun}{'s' * (count != 1)}"
            if key == "publishers":
                rate = entry.get("rate", "?")
                if isinstance(rate, list):
                    rate = " then ".join(dict.fromkeys(str(step["at"]) for step in rate))
                words += ", full speed" if rate == "max" else f", {rate} each"
            else:
                predicate = entry.get("filter", "true")
                words += ": all" if predicate == "true" else f": {predicate}"
            at = [entry["at"]] if isinstance(entry["at"], str) else entry["at"]
            for broker in at:
                found.setdefault(broker, []).append(words)
    return found


def _root(run: Run) -> str:
    """Return the root of the picture: the broker of the first publishers."""
    for entry in run.workload.get("publishers", ()):
        at = entry["at"] if isinstance(entry["at"], str) else entry["at"][0]
        if at in run.topology["brokers"]:
            return str(at)
    return str(run.topology["brokers"][0])
