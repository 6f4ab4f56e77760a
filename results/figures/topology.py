"""The tree of brokers as it was placed and broken: figure `run.topology`.

A broker is a disc with the number of its host in it; hosts of one failure domain have shades of
one hue. What was broken has a mark and an outline of its own, so that nothing is told by colour
alone. Few brokers are drawn from left to right with what happened to each; many go around the
one in the middle.
"""

import colorsys
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from results.figures.data import FigureData, figure_data
from results.figures.drawing import also_for_dark_pages, house_style
from results.figures.style import (
    GRID,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    RED,
    SERIES,
    WIDTHS_INCHES,
    Width,
    footer,
    new_figure,
    run_style,
    title,
)
from results.rules.faults import FaultSpan, fault_spans
from results.tables.json_files import read_json
from results.tables.manifest import Run

MOST_LEAVES_IN_ROWS = 24
MOST_BROKERS = 400
MOST_NOTES = 3

SECOND_NS = 1_000_000_000
# From harmless to worst.
FATES = ("untouched", "limited", "held", "cut", "restarted", "gone")
_WORDS = {
    "limited": "slowed down",
    "held": "held everything back",
    "cut": "cut",
    "restarted": "down, and back",
    "gone": "down",
}
_INKS = {"limited": ORANGE, "held": ORANGE, "cut": RED, "restarted": RED, "gone": RED}
_DASHES = {"limited": (0, (1, 1.2)), "held": (0, (3, 1.5)), "cut": (0, (3, 1.5))}
_MARKS = {"limited": "v", "held": "s", "cut": "x", "restarted": "P", "gone": "X"}

Point = tuple[float, float]


def collect(run: Run) -> FigureData:
    """Brokers and links, where each was placed, and what was done to it."""
    hosts, domains = _placement(run)
    end_ns = run.phase("drain").to_ns or run.phase("measure").to_ns
    spans = fault_spans(run.fault_rows, end_ns)
    rows = topology_rows(run.topology["brokers"], run.links, hosts, domains, spans)
    about = {
        "run_id": run.run_id,
        "topology": run.topology.get("name"),
        "protocol": run.protocol,
        "delta": run.delta,
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
) -> list[dict[str, Any]]:
    """A row per broker and per link.

    Args:
        hosts: by broker; brokers may be missing.
        domains: failure domain by host; a host that is missing is one of its own.
    """
    rows = []
    for broker in brokers:
        fate, notes = _fate([span for span in spans if broker in span.parts])
        host = hosts.get(broker, "")
        rows.append(_row("broker", broker, "", host, domains.get(host, host), fate, notes))
    for a, b in links:
        targets = {f"{x}{arrow}{y}" for x, y in ((a, b), (b, a)) for arrow in ("-", "->")}
        fate, notes = _fate([s for s in spans if not targets.isdisjoint(s.parts)], is_link=True)
        rows.append(_row("link", a, b, "", "", fate, notes))
    return rows


def topology_svg(
    name: str,
    delta: int,
    brokers: Sequence[str],
    links: Sequence[tuple[str, str]],
    hosts: Mapping[str, str],
    domains: Mapping[str, str],
) -> str:
    """A topology that did not run yet, as it would be placed: the content of an SVG file."""
    about = {
        "topology": name,
        "delta": delta,
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
    return also_for_dark_pages(stream.getvalue().decode("utf-8"))


def paint(data: FigureData, width: Width = "wide") -> Figure:
    """The tree of brokers by host and failure domain, with what was broken."""
    about = data.about
    rows = [{key: "" if value is None else str(value) for key, value in row.items()}
            for row in data.records()]  # fmt: skip
    brokers = [row for row in rows if row["kind"] == "broker"]
    links = [row for row in rows if row["kind"] == "link"]
    what = f"{about['topology']}: {len(brokers)} brokers"
    if about["hosts"]:
        what += f" on {about['hosts']} host{'s' * (about['hosts'] != 1)}"
    if len(brokers) > MOST_BROKERS:
        figure = new_figure(width, 0.8)
        title(figure, 0.01, f"{what}: too many to be drawn")
        return figure
    tree = _Tree([row["name"] for row in brokers], links, about["root"])
    inches = WIDTHS_INCHES[width]
    is_round = len(tree.leaves) > MOST_LEAVES_IN_ROWS
    inks = _host_inks(brokers)
    key = _key(inks, rows, inches)
    foot = 0.30 + 0.19 * len(key)
    drawn = inches - 0.3 if is_round else 0.55 * len(tree.leaves) + 0.4
    figure = new_figure(width, 0.42 + drawn + foot)
    height = 0.42 + drawn + foot
    axes = figure.add_axes((0.0, foot / height, 1.0, drawn / height))
    axes.set_axis_off()
    axes.set_xlim(0, inches)
    axes.set_ylim(0, drawn)
    places = tree.around(inches, drawn) if is_round else tree.in_rows(inches, drawn, width)
    size = _disc_inches(len(tree.leaves), inches) if is_round else 0.27
    for row in links:
        _draw_link(axes, row, places[row["name"]], places[row["other"]], size, named=not is_round)
    middle = (inches / 2, drawn / 2) if is_round else None
    for row in brokers:
        is_leaf = not tree.children[row["name"]]
        _draw_broker(axes, row, places[row["name"]], size, inks, middle, is_leaf=is_leaf)
    title(figure, 0.012, what)
    _draw_key(figure, key, foot, inches)
    if about.get("run_id"):
        more = f"; also {', '.join(about['elsewhere'])}" if about["elsewhere"] else ""
        delta = f", δ = {about['delta']}" if about["protocol"] == "delta_tree" else ""
        said = f"{about['protocol']}{delta}; run {about['run_id']}{more}"
        footer(figure, said if width == "wide" else about["run_id"])
    return figure


def metrics(data: FigureData) -> dict[str, float]:
    """How many brokers and links were touched."""
    touched = [row for row in data.records() if row["fate"] != "untouched"]
    return {
        "brokers_touched": float(sum(row["kind"] == "broker" for row in touched)),
        "links_touched": float(sum(row["kind"] == "link" for row in touched)),
    }


class _Tree:
    """Who is whose child, and a place for each."""

    def __init__(self, brokers: Sequence[str], links: Sequence[Mapping[str, str]], root: str):
        neighbours: dict[str, list[str]] = {broker: [] for broker in brokers}
        for row in links:
            neighbours[row["name"]].append(row["other"])
            neighbours[row["other"]].append(row["name"])
        self.order: list[tuple[str, int]] = []
        self.children: dict[str, list[str]] = {}
        waiting: list[tuple[str, str, int]] = [(root, "", 0)]
        while waiting:
            broker, parent, depth = waiting.pop()
            self.order.append((broker, depth))
            self.children[broker] = [other for other in neighbours[broker] if other != parent]
            waiting += [(child, broker, depth + 1) for child in reversed(self.children[broker])]
        self.leaves = [broker for broker, _ in self.order if not self.children[broker]]
        self.depth = max(depth for _, depth in self.order)
        # Where a broker is across the tree: leaves one after the other, others amid theirs.
        self.across = {leaf: float(place) for place, leaf in enumerate(self.leaves)}
        for broker, _ in reversed(self.order):
            if below := self.children[broker]:
                self.across[broker] = (self.across[below[0]] + self.across[below[-1]]) / 2

    def in_rows(self, width: float, height: float, size: Width) -> dict[str, Point]:
        """From left to right; the root's end is the left one."""
        left, right = (0.75, 1.5) if size == "wide" else (0.4, 1.0)
        column = (width - left - right) / max(1, self.depth)
        row = height / max(1, len(self.leaves))
        return {
            broker: (left + depth * column, height - (self.across[broker] + 0.5) * row)
            for broker, depth in self.order
        }

    def around(self, width: float, height: float) -> dict[str, Point]:
        """Around the root, each level on a ring of its own."""
        radius = min(width, height) / 2 - 0.42
        turn = 2 * math.pi / len(self.leaves)
        found = {}
        for broker, depth in self.order:
            angle = math.pi / 2 - self.across[broker] * turn
            reach = radius * depth / max(1, self.depth)
            found[broker] = (
                width / 2 + reach * math.cos(angle),
                height / 2 + reach * math.sin(angle),
            )
        return found


def _disc_inches(leaves: int, inches: float) -> float:
    """As large as the outer ring lets discs be."""
    return max(0.05, min(0.25, math.pi * (inches - 1.2) / leaves * 0.72))


def _draw_link(
    axes: Axes, row: Mapping[str, str], a: Point, b: Point, size: float, *, named: bool
) -> None:
    fate = row["fate"]
    ink = _INKS.get(fate, MUTED)
    axes.plot(
        [a[0], b[0]],
        [a[1], b[1]],
        color=ink,
        linewidth=1.8 if fate in _INKS else 0.9,
        linestyle=_DASHES.get(fate, "-") if fate in _INKS else "-",
        zorder=2 if fate in _INKS else 1,
        solid_capstyle="butt",
    )
    if fate not in _INKS:
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
    outline = _INKS.get(fate, PAPER)
    axes.plot(
        [x], [y],
        marker="o", markersize=points, markerfacecolor=ink, markeredgecolor=outline,
        markeredgewidth=min(2.4, points / 7) if fate in _INKS else 0.6, linestyle="none", zorder=4,
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
    if fate in _INKS:
        at = (x + size * 0.75 * away[0], y + size * 0.75 * away[1])
        _mark(axes, fate, at, max(4.0, min(7.5, points * 0.42)))


def _name_above(
    axes: Axes, row: Mapping[str, str], place: Point, size: float, *, is_leaf: bool
) -> None:
    x, y = place
    axes.text(
        x, y + size / 2 + 0.035, row["name"], fontsize=8.5, weight="bold", color=INK,
        ha="center", va="bottom", zorder=5,
    )  # fmt: skip
    notes = row["faults"].split("; ") if row["faults"] else []
    if not notes:
        return
    more = [f"and {len(notes) - MOST_NOTES} more"] if len(notes) > MOST_NOTES else []
    at = (x + size / 2 + 0.1, y) if is_leaf else (x, y - size / 2 - 0.06)
    axes.text(
        *at, "\n".join([*notes[:MOST_NOTES], *more]), fontsize=6.5, color=_INKS[row["fate"]],
        ha="left" if is_leaf else "center", va="center" if is_leaf else "top", zorder=6,
        linespacing=1.2, bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.8, "alpha": 0.85},
    )  # fmt: skip


def _name_around(
    axes: Axes,
    row: Mapping[str, str],
    place: Point,
    size: float,
    outwards: Point,
    *,
    is_leaf: bool,
) -> None:
    """Leaves have their names outside, written outwards; the others beside, out of the links."""
    style: dict[str, Any] = {
        "fontsize": max(3.5, min(7.0, size * 34)),
        "color": _INKS.get(row["fate"], INK),
        "weight": "bold" if row["fate"] in _INKS else "normal",
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
        marker=_MARKS[fate], markersize=points, markerfacecolor=_INKS[fate],
        markeredgecolor=_INKS[fate] if _MARKS[fate] == "x" else PAPER,
        markeredgewidth=1.8 if _MARKS[fate] == "x" else 0.7, linestyle="none", zorder=7,
    )  # fmt: skip


def _host_inks(brokers: Sequence[Mapping[str, str]]) -> dict[str, tuple[int, str]]:
    """By host, its number and its colour: one hue per failure domain, a shade per host in it."""
    domains: dict[str, list[str]] = {}
    for row in brokers:
        if row["host"]:
            hosts = domains.setdefault(row["failure_domain"], [])
            if row["host"] not in hosts:
                hosts.append(row["host"])
    found: dict[str, tuple[int, str]] = {}
    for place, (_, hosts) in enumerate(sorted(domains.items(), key=lambda item: natural(item[0]))):
        hue = _hue(place, len(domains))
        for shade, host in enumerate(sorted(hosts, key=natural)):
            found[host] = (len(found) + 1, _shaded(hue, shade, len(hosts)))
    return found


def _hue(place: int, count: int) -> str:
    """The colour of a failure domain; those of faults are left to faults."""
    usual = [ink for ink in SERIES if ink not in (RED, ORANGE)]
    if count <= len(usual):
        return usual[place]
    red, green, blue = colorsys.hls_to_rgb(0.13 + 0.8 * place / count, 0.42, 0.5)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def _shaded(ink: str, place: int, count: int) -> str:
    """The place-th of so many shades of a colour, the colour itself first."""
    if place == 0:
        return ink
    share = 0.55 * place / max(1, count - 1)
    parts = [int(ink[at : at + 2], 16) for at in (1, 3, 5)]
    mixed = [round(part + (200 - part) * share) for part in parts]
    return "#" + "".join(f"{part:02x}" for part in mixed)


def natural(name: str) -> list[tuple[int, int, str]]:
    """What sorts n2 before n10."""
    pieces: list[tuple[int, int, str]] = []
    digits, letters = "", ""
    for letter in [*name, ""]:
        if letter.isdecimal():
            if letters:
                pieces.append((1, 0, letters))
            digits, letters = digits + letter, ""
        else:
            if digits:
                pieces.append((0, int(digits), ""))
            digits, letters = "", letters + letter
    return [*pieces, (1, 0, letters)] if letters else pieces


Entry = tuple[str, str, str]
"""Of the key: a mark ("o" for a disc, "" for none), its colour, words."""


def _key(
    inks: Mapping[str, tuple[int, str]], rows: Sequence[Mapping[str, str]], inches: float
) -> list[list[Entry]]:
    """What marks mean, in lines; hosts of one failure domain behind its name."""
    domains: dict[str, list[str]] = {}
    domain_of = {row["host"]: row["failure_domain"] for row in rows if row["host"]}
    for host in inks:
        domains.setdefault(domain_of[host], []).append(host)
    lines: list[list[Entry]] = []
    hosts: list[Entry] = []
    for domain, members in domains.items():
        entries: list[Entry] = [("o", inks[host][1], f"{inks[host][0]} {host}") for host in members]
        if members == [domain]:
            hosts += entries
        else:
            lines += _broken([("", INK, domain), *entries], inches)
    used = {row["fate"] for row in rows}
    marks: list[Entry] = [
        (fate, _INKS[fate], _WORDS[fate]) for fate in FATES if fate in used & {*_INKS}
    ]
    if len(hosts) <= 4:
        return [*lines, *_broken([*hosts, *marks], inches)]
    return [*_broken(hosts, inches), *lines, *_broken(marks, inches)]


def _broken(entries: Sequence[Entry], inches: float) -> list[list[Entry]]:
    """Entries in as many lines as they need."""
    lines: list[list[Entry]] = []
    room = 0.0
    for entry in entries:
        if _entry_inches(entry) > room:
            lines.append([])
            room = inches - 0.3
        lines[-1].append(entry)
        room -= _entry_inches(entry)
    return lines


def _entry_inches(entry: Entry) -> float:
    return (0.34 if entry[0] else 0.2) + 0.07 * len(entry[2])


def _draw_key(figure: Figure, key: Sequence[Sequence[Entry]], foot: float, inches: float) -> None:
    _, height = figure.get_size_inches()
    y = foot - 0.14
    for line in key:
        x = 0.2
        for kind, ink, words in line:
            if kind:
                marker = _MARKS.get(kind, "o")
                crossed = marker == "x"
                dot = Line2D([x / inches], [y / height], marker=marker, linestyle="none")
                dot.set(markersize=6.5 if marker == "o" else 6, markerfacecolor=ink)
                dot.set(markeredgecolor=ink if crossed else GRID)
                dot.set(markeredgewidth=1.6 if crossed else 0.5)
                figure.add_artist(dot)
            figure.text(
                (x + (0.1 if kind else -0.06)) / inches, y / height, words, fontsize=7.5,
                color=MUTED if kind else ink, va="center_baseline",
            )  # fmt: skip
            x += _entry_inches((kind, ink, words))
        y -= 0.19


def _fate(spans: Sequence[FaultSpan], *, is_link: bool = False) -> tuple[str, list[str]]:
    """The worst of what happened to one target, and all of it in words."""
    fates = ["untouched"]
    for span in spans:
        if span.kind == "down":
            fates.append("cut" if is_link else "restarted" if span.is_over else "gone")
        elif span.kind != "back":
            fates.append("cut" if span.verb == "cut" else span.kind)
    told = [_words_of(span, with_target=False) for span in spans if span.kind != "back"]
    return max(fates, key=FATES.index), told


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
    }


def _placement(run: Run) -> tuple[dict[str, str], dict[str, str]]:
    """Host by broker, failure domain by host; nothing of runs that were not placed."""
    path = run.folder / "spec" / "placement.json"
    if not path.is_file():
        return {}, {}
    placement = read_json(path)
    hosts = {str(row["broker"]): str(row["host"]) for row in placement.get("brokers", ())}
    return hosts, {**placement.get("failure_domains", {})}


def _root(run: Run) -> str:
    """The broker the picture starts from: the first publishers' one."""
    for entry in run.workload.get("publishers", ()):
        at = entry["at"] if isinstance(entry["at"], str) else entry["at"][0]
        if at in run.topology["brokers"]:
            return str(at)
    return str(run.topology["brokers"][0])
