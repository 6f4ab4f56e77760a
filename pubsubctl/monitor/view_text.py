"""Text of a view of a running lab: a line for logs, and a screen."""

import math
from collections.abc import Iterator, Sequence
from typing import Final, Literal

from brokerd.text import counted
from pubsubctl.monitor.live_view import HISTORY, BrokerRow, FaultRow, LatencyView, View

BARS = "▁▂▃▄▅▆▇█"
PLAIN_BARS = "_.-=+*#@"

Style = Literal["", "good", "bad", "doubtful", "dim", "bold"]
Line = tuple[tuple[str, Style], ...]


def one_line(view: View) -> str:
    """Return the view as a line for logs."""
    if view.deployment is None:
        return f"{view.clock}  {_no_rows(view)}"
    healthy = sum(row.is_healthy for row in view.brokers)
    parts = [
        f"{_rate(view.published)} published/s",
        f"{_rate(view.delivered)} delivered/s",
        f"backlog {_count(view.unsent + view.open)}",
        _latency_text(view.latency),
        f"brokers {healthy}/{len(view.brokers)}",
        f"sessions {view.sessions[0]}/{view.sessions[1]}",
        f"cpu {_decimal(view.cpu, 2)}",
        *(_fault_text(row) for row in view.faults),
        *(f"{host} does not answer" for host in view.unreachable),
        *([_describe_reach(view)] if view.awaited else []),
    ]
    return f"{view.clock}  " + "  ".join(parts)


def screen_lines(view: View, width: int, height: int, *, plain: bool = False) -> list[Line]:
    """Return the view as a screen of at most `height` lines, none longer than `width`.

    Args:
        plain: use only ASCII characters.
    """
    lines = [_cut(line, width) for line in [*_head(view, width, plain), *_alarms(view)]]
    foot: Line = (("q ends this view; brokers keep running", "dim"),)
    rows = max(2, height - len(lines) - 1)
    lines += [_cut(line, width) for line in _table(view, width, rows)]
    return [*lines[: height - 1], _cut(foot, width)]


def line_text(line: Line) -> str:
    """Return a line without styles."""
    return "".join(text for text, _ in line).rstrip()


def _head(view: View, width: int, plain: bool) -> Iterator[Line]:
    about = view.deployment
    if about is None:
        yield _spread("pubsubctl", view.clock, width)
        yield ((_no_rows(view), "doubtful"),)
        return
    title = f"{about['topology']['name']} · {about['protocol']}"
    title += f" · {counted(len(view.brokers), 'broker')} on {counted(view.hosts, 'host')}"
    yield _spread(title.replace("·", "-") if plain else title, view.clock, width)
    if view.run_id:
        yield ((f"run {view.run_id}", "dim"),)
    elif not view.published_total:
        yield (("no workload runs", "dim"),)
    bars = PLAIN_BARS if plain else BARS
    room = max(0, min(HISTORY, width - 34))
    for name, rate, history, total in (
        ("published", view.published, view.published_history, view.published_total),
        ("delivered", view.delivered, view.delivered_history, view.delivered_total),
    ):
        yield (
            (f"{name:10}", "dim"),
            (f"{_rate(rate):>8}/s", "bold"),
            (f"  {_spark(history[-room:] if room else (), bars):{room}}", ""),
            (f" {_count(total):>9}" if total else "", "dim"),
        )
    unsent = f"{_count(view.unsent):>8} "
    yield _join_whole(
        width,
        (("backlog   ", "dim"), (unsent, "doubtful" if view.unsent > 1000 else ""), _dim("unsent")),
        (("  ", ""), (_count(view.open), ""), _dim(" unacknowledged")),
        (("  ", ""), (_count(view.queued), ""), _dim(" queued")),
        (("  ", ""), (_bytes(view.outbox_bytes), ""), _dim(" in outboxes")),
    )
    latency = view.latency
    if latency is None:
        reason = "nothing arrived in the last second"
        if not view.run_id and not view.published_total:
            reason = "measured while a workload runs"
        yield ((f"latency          -   {reason}", "dim"),)
    else:
        p50, p99, most = map(_duration, (latency.p50_us, latency.p99_us, latency.max_us))
        yield _join_whole(
            width,
            (("latency   ", "dim"), (f"p50 {p50:>9}  p99 {p99:>9}", "bold")),
            (_dim(f"  max {most}"),),
            (_dim(f" ({latency.count} sampled)"),),
        )
    ready, wanted = view.sessions
    healthy, number = sum(row.is_healthy for row in view.brokers), len(view.brokers)
    yield _join_whole(
        width,
        (("sessions  ", "dim"), (f"{ready}/{wanted}", "bad" if ready < wanted else "good")),
        (_dim(" ready"),),
        (_dim("   brokers "), (f"{healthy}/{number}", "good" if healthy == number else "bad")),
        (_dim(" healthy"),),
        (_dim("   processors "), (_decimal(view.cpu, 2), "")),
    )


def _alarms(view: View) -> Iterator[Line]:
    for host, why in view.unreachable.items():
        yield ((f"! {host} does not answer: {why}", "bad"),)
    if view.awaited and view.deployment is not None:
        yield ((_describe_reach(view), "doubtful"),)
    for row in view.faults[:4]:
        yield ((f"! {_fault_text(row)}", "doubtful"), (f"  on {row.host}, {row.fault_id}", "dim"))
    if len(view.faults) > 4:
        yield ((f"! and {counted(len(view.faults) - 4, 'more fault')}", "doubtful"),)
    if view.leases_ms:
        left = min(view.leases_ms.values()) / 1000
        text = f"kept up by the command that deployed it; stops within {left:.0f} s of its end"
        yield ((text, "dim"),)


def _table(view: View, width: int, height: int) -> Iterator[Line]:
    """Yield the table of brokers: all in order if there is room, else unhealthy brokers first."""
    rows = list(view.brokers)
    if not rows:
        return
    yield (("", ""),)
    height -= 2
    rest: list[BrokerRow] = []
    if len(rows) > height:
        rows.sort(key=lambda row: (row.is_healthy, -(row.cpu or 0.0)))
        rest, rows = rows[max(0, height - 1) :], rows[: max(0, height - 1)]
    names = max([6, *(len(row.name) for row in view.brokers)])
    hosts = max([4, *(len(row.host) for row in view.brokers)])
    names, hosts = min(names, 14), min(hosts, 12)
    room = width - names - hosts - _NARROWEST_STATE - 12
    shown = max((n for n in range(len(_COLUMNS) + 1) if _numbers_width(n) <= room), default=0)
    numbers = " ".join(f"{name:>{wide}}" for name, wide in _COLUMNS[:shown])
    longest = max(_WIDE_STATE, *(len(row.state) for row in view.brokers))
    left = width - names - hosts - len(numbers) - 12
    state = max(_NARROWEST_STATE, min(left, longest))
    head = f"  {'BROKER':{names}} {'HOST':{hosts}} {'STATE':{state}} {'SESS':>5} {numbers}"
    yield ((head, "dim"),)
    for row in rows:
        shown_state = _shorten(row.state, state)
        style: Style = "" if row.is_healthy else "bad"
        yield (
            ("  " if row.is_healthy else "! ", style),
            (f"{_shorten(row.name, names):{names}} ", "bold" if row.is_healthy else "bad"),
            (f"{_shorten(row.host, hosts):{hosts}} ", "dim"),
            (f"{shown_state:{state}} ", style),
            (f"{row.sessions[0]}/{row.sessions[1]}".rjust(5) + " ", ""),
            (_numbers(row)[: _numbers_width(shown)], ""),
        )
    if rest:
        sick = sum(not row.is_healthy for row in rest)
        busy = f"cpu {_decimal(sum(row.cpu or 0.0 for row in rest) * 100, 0)} % together"
        ready = sum(row.sessions[0] for row in rest)
        wanted = sum(row.sessions[1] for row in rest)
        shown_state = f"{sick} of them unhealthy" if sick else "all healthy"
        text = f"  and {len(rest)} more: {shown_state}, sessions {ready}/{wanted}, {busy}"
        yield ((text, "bad" if sick else "dim"),)


_COLUMNS: Final = (("CPU%", 5), ("IN/s", 7), ("OUT/s", 7), ("DELIV/s", 7), ("QUEUE", 6))
_NARROWEST_STATE: Final = 7
_WIDE_STATE: Final = 23
"""The width of states on a wide terminal; more would part numbers from the names of brokers."""


def _numbers_width(columns: int) -> int:
    """Return the width of the first columns of numbers."""
    return sum(wide + 1 for _, wide in _COLUMNS[:columns]) - (columns > 0)


def _numbers(row: BrokerRow) -> str:
    cpu = None if row.cpu is None else row.cpu * 100
    return (
        f"{_decimal(cpu, 0):>5} {_rate(row.received):>7} {_rate(row.forwarded):>7} "
        f"{_rate(row.delivered):>7} {_count(row.queue):>6}"
    )


def _fault_text(row: FaultRow) -> str:
    left = "" if row.left_ms is None else f", heals within {max(0, row.left_ms) / 1000:.0f} s"
    return f"{row.verb} {row.target}{left}"


def _no_rows(view: View) -> str:
    if view.unreachable:
        return "; ".join(f"{host}: {why}" for host, why in view.unreachable.items())
    return _describe_reach(view) if view.awaited else "nothing is deployed; waiting"


def _describe_reach(view: View) -> str:
    more = f" and {len(view.awaited) - 4} more" if len(view.awaited) > 4 else ""
    return f"reaching {', '.join(view.awaited[:4])}{more}"


def _spread(left: str, right: str, width: int) -> Line:
    gap = max(2, width - len(left) - len(right))
    return ((left, "bold"), (" " * gap, ""), (right, "dim"))


def _dim(text: str) -> tuple[str, Style]:
    return text, "dim"


def _join_whole(width: int, *parts: Line) -> Line:
    """Return the first parts that fit whole, so that no number is cut."""
    line: Line = parts[0]
    for part in parts[1:]:
        if sum(len(text) for text, _ in (*line, *part)) > width:
            break
        line += part
    return line


def _cut(line: Line, width: int) -> Line:
    kept: list[tuple[str, Style]] = []
    for text, style in line:
        if width <= 0:
            break
        kept.append(
            (_shorten(text.rstrip(), width) if text[width:].strip() else text[:width], style)
        )
        width -= len(text)
    return tuple(kept)


def _shorten(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "~"


def _spark(values: Sequence[float], bars: str) -> str:
    most = max(values, default=0.0)
    if most <= 0:
        return bars[0] * len(values)
    top = len(bars) - 1
    return "".join(bars[min(top, math.ceil(value / most * top))] for value in values)


def _latency_text(latency: LatencyView | None) -> str:
    if latency is None:
        return "latency -"
    return f"p50 {_duration(latency.p50_us)}  p99 {_duration(latency.p99_us)}"


def _duration(microseconds: float) -> str:
    if microseconds < 1000:
        return f"{microseconds:.0f} us"
    if microseconds < 1_000_000:
        return f"{microseconds / 1000:.2f} ms"
    return f"{microseconds / 1_000_000:.2f} s"


def _rate(value: float | None) -> str:
    return "-" if value is None else _count(round(value))


def _count(number: int) -> str:
    if abs(number) < 100_000:
        return f"{number:,}"
    if abs(number) < 10_000_000:
        return f"{number / 1000:,.0f}k"
    return f"{number / 1_000_000:,.0f}M"


def _bytes(number: int) -> str:
    for limit, unit, size in ((1024, "B", 1), (1 << 20, "KiB", 1 << 10), (1 << 30, "MiB", 1 << 20)):
        if number < limit:
            return f"{number / size:.0f} {unit}"
    return f"{number / (1 << 30):.1f} GiB"


def _decimal(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
