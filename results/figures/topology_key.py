"""The key of figure `run.topology`: hosts by colour and number, and fates."""

import colorsys
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from results.figures.style import GRID, INK, MUTED, ORANGE, RED, SERIES

# From harmless to worst.
FATES = ("untouched", "limited", "held", "cut", "restarted", "gone")
FATE_WORDS = {
    "limited": "slowed down",
    "held": "held everything back",
    "cut": "cut",
    "restarted": "down, and back",
    "gone": "down",
}
FATE_INKS = {"limited": ORANGE, "held": ORANGE, "cut": RED, "restarted": RED, "gone": RED}
FATE_DASHES = {"limited": (0, (1, 1.2)), "held": (0, (3, 1.5)), "cut": (0, (3, 1.5))}
FATE_MARKS = {"limited": "v", "held": "s", "cut": "x", "restarted": "P", "gone": "X"}


def host_inks(brokers: Sequence[Mapping[str, str]]) -> dict[str, tuple[int, str]]:
    """Return number and colour by host: a hue per failure domain, a shade per host."""
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
            found[host] = (len(found) + 1, _shade(hue, shade, len(hosts)))
    return found


def _hue(place: int, count: int) -> str:
    """Return the colour of a failure domain; colours of faults are not used."""
    usual = [ink for ink in SERIES if ink not in (RED, ORANGE)]
    if count <= len(usual):
        return usual[place]
    red, green, blue = colorsys.hls_to_rgb(0.13 + 0.8 * place / count, 0.42, 0.5)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def _shade(ink: str, place: int, count: int) -> str:
    """Return the place-th of `count` shades of a colour; the first is the colour."""
    if place == 0:
        return ink
    share = 0.55 * place / max(1, count - 1)
    parts = [int(ink[at : at + 2], 16) for at in (1, 3, 5)]
    mixed = [round(part + (200 - part) * share) for part in parts]
    return "#" + "".join(f"{part:02x}" for part in mixed)


def natural(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key that puts n2 before n10."""
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
"""An entry of the key: a mark ("o" for a disc, "" for none), its colour, words."""


def key_lines(
    inks: Mapping[str, tuple[int, str]], rows: Sequence[Mapping[str, str]], inches: float
) -> list[list[Entry]]:
    """Return the key in lines; hosts of a failure domain follow the domain's name."""
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
            lines += _break_lines([("", INK, domain), *entries], inches)
    used = {row["fate"] for row in rows}
    marks: list[Entry] = [
        (fate, FATE_INKS[fate], FATE_WORDS[fate]) for fate in FATES if fate in used & {*FATE_INKS}
    ]
    if len(hosts) <= 4:
        return [*lines, *_break_lines([*hosts, *marks], inches)]
    return [*_break_lines(hosts, inches), *lines, *_break_lines(marks, inches)]


def _break_lines(entries: Sequence[Entry], inches: float) -> list[list[Entry]]:
    """Return entries in as many lines as necessary."""
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


def draw_key(figure: Figure, key: Sequence[Sequence[Entry]], foot: float, inches: float) -> None:
    _, height = figure.get_size_inches()
    y = foot - 0.14
    for line in key:
        x = 0.2
        for kind, ink, words in line:
            if kind:
                marker = FATE_MARKS.get(kind, "o")
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
