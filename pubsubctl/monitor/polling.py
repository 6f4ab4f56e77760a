"""Polling of a lab: queries every host once a second and shows the answers.

A single connection per host is used. A host that does not answer, or has no deployment yet, is
queried again every second, so a view may be opened before a deployment exists and stays open after
its end.
"""

import os
import shutil
import sys
import termios
import time
import tty
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import trio

from brokerd.agent.client import AgentClient
from brokerd.errors import ControlError
from pubsubctl.console.console import Console
from pubsubctl.console.interruption import until_interrupted
from pubsubctl.deployment.newest_record import Records
from pubsubctl.errors import HostError, PreflightFailed, Unreachable
from pubsubctl.hosts.connectors.base import Connector
from pubsubctl.hosts.hosts import Lab, run_reaching
from pubsubctl.monitor.live_view import BrokerSample, HostSample, LoadSample, Mark, View, Watch
from pubsubctl.monitor.view_text import Line, line_text, one_line, screen_lines
from pubsubctl.state import broker_state, is_in_effect

LOOK_EVERY_S = 1.0
ANSWER_TIMEOUT_MS = 900
RECORD_EVERY_LOOKS = 5
FIRST_LOOK_S = 3.0
QUIT_KEYS = b"qQ\x03\x04"

_STYLES = {"good": "green", "bad": "bold red", "doubtful": "yellow", "dim": "dim", "bold": "bold"}


async def watch_lab(lab: Lab, on_view: Callable[[View], None]) -> None:
    """Call `on_view` with a view of the lab every second, forever."""
    watch = Watch()
    looks: dict[str, HostSample] = {}
    records = Records()
    async with trio.open_nursery() as nursery:
        for connector in lab.connectors:
            nursery.start_soon(_follow, connector, records, looks)
        with trio.move_on_after(FIRST_LOOK_S):
            while len(looks) < len(lab.connectors):
                await trio.sleep(0.02)
        due = trio.current_time()
        while True:
            hosts = [
                looks.get(name, HostSample(host=name, is_awaited=True))
                for name in (connector.host.name for connector in lab.connectors)
            ]
            on_view(watch.take(hosts, time.strftime("%H:%M:%S")))
            due = max(due + LOOK_EVERY_S, trio.current_time())
            await trio.sleep_until(due)


async def _follow(connector: Connector, records: Records, looks: dict[str, HostSample]) -> None:
    """Keep the last sample of a host in `looks`, and its record in `records`."""
    name = connector.host.name
    while True:
        try:
            record = await connector.read_deployment()
            if record is None:
                records.by_host.pop(name, None)
                looks[name] = HostSample(host=name)
            else:
                records.by_host[name] = record
                async with connector.open_agent() as agent:
                    await _sample_every_second(connector, agent, records, looks)
        except* (Unreachable, HostError, PreflightFailed, ControlError) as group:
            error: BaseException = group
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            looks[name] = HostSample(host=name, unreachable=_explain(error, name))
        await trio.sleep(LOOK_EVERY_S)


def _explain(error: BaseException, host: str) -> str:
    return str(error).splitlines()[0].removeprefix(f"host {host}: ")


async def _sample_every_second(
    connector: Connector,
    agent: AgentClient,
    records: Records,
    looks: dict[str, HostSample],
) -> None:
    """Sample a host once a second until the deployment changes."""
    after_ns: dict[str, int] = {}
    name = connector.host.name
    for count in range(1, sys.maxsize):
        began = trio.current_time()
        record = records.of(name)
        assert record is not None, name
        looks[name] = await sample_host(agent, record, name, after_ns)
        await trio.sleep_until(began + LOOK_EVERY_S)
        if count % RECORD_EVERY_LOOKS == 0:
            fresh = await connector.read_deployment()
            if fresh is None or fresh["deployment_id"] != record["deployment_id"]:
                return
            records.by_host[name] = fresh


async def sample_host(
    agent: AgentClient, record: Mapping[str, Any], host: str, after_ns: dict[str, int]
) -> HostSample:
    """Return a sample of a host.

    Args:
        after_ns: by load generator, the time of the latest sampled publication; updated.

    Raises:
        ControlError: the agent does not answer.
    """
    status = await agent.status()
    placed = [row for row in record["placement"]["brokers"] if row["host"] == host]
    brokers: dict[str, BrokerSample] = {}
    loads: list[LoadSample] = []

    async def query_broker(row: Mapping[str, Any]) -> None:
        brokers[row["broker"]] = await _sample_broker(
            agent, row, status["processes"].get(row["broker"])
        )

    async def query_load(process: str) -> None:
        try:
            answer = await agent.broker(
                process,
                "latency_samples",
                {"after_ns": after_ns.get(process, 0)},
                ANSWER_TIMEOUT_MS,
            )
        except ControlError as error:
            if error.kind == "closed":
                raise
            return  # the load generator is starting, or ending
        after_ns[process] = answer["now_ns"]
        loads.append(_load_sample(process, answer))

    async with trio.open_nursery() as nursery:
        for row in placed:
            nursery.start_soon(query_broker, row)
        for process, row in status["processes"].items():
            if row["role"] == "load" and row["state"] == "running":
                nursery.start_soon(query_load, process)
    return HostSample(
        host=host,
        deployment=record,
        brokers=tuple(brokers[row["broker"]] for row in placed),
        loads=tuple(sorted(loads, key=lambda load: load.process)),
        faults=tuple(row for row in status["faults"] if is_in_effect(row)),
        lease_ms=status["lease"]["left_ms"] if status["lease"] else None,
    )


async def _sample_broker(
    agent: AgentClient, placed: Mapping[str, Any], process: Mapping[str, Any] | None
) -> BrokerSample:
    name = placed["broker"]
    state = await broker_state(agent, placed, process, ANSWER_TIMEOUT_MS)
    if state.pid is None or state.state == "silent":
        return BrokerSample(state=state)
    try:
        counters = await agent.broker(name, "statistics", timeout_ms=ANSWER_TIMEOUT_MS)
    except ControlError as error:
        if error.kind == "closed":
            raise
        return BrokerSample(state=state)
    return BrokerSample(
        state=state,
        t_ns=counters["t_ns"],
        counters={key: value for key, value in counters.items() if isinstance(value, int | float)},
        run_id=state.run_id,
    )


def _load_sample(process: str, answer: Mapping[str, Any]) -> LoadSample:
    return LoadSample(
        process=process,
        t_ns=answer["now_ns"],
        sent=answer["sent"],
        backlog=answer["backlog"],
        open=answer["open"],
        delivered=answer["delivered"],
        sent_marks=_marks(answer["sent_rows"]),
        received_marks=_marks(answer["received_rows"]),
    )


def _marks(answer: Mapping[str, Any]) -> tuple[Mark, ...]:
    sources = answer["sources"]
    return tuple((sources[number], sequence, t_ns) for number, sequence, t_ns in answer["rows"])


# ------------------------------------------------------------ presentation


def watch(lab: Lab, console: Console, write: Callable[[str], None]) -> View | None:
    """Show the lab until `q` or Ctrl-C; return the last view.

    Args:
        write: receives a line; used for --json, and if standard output is no terminal.
    """
    last: list[View] = []

    async def show(on_view: Callable[[View], None]) -> None:
        def remember(view: View) -> None:
            last[:] = [view]
            on_view(view)

        await run_reaching(lab, lambda: watch_lab(lab, remember))

    if console.as_json:
        import json

        trio.run(until_interrupted, partial(show, lambda view: write(json.dumps(view.document()))))
    elif not console.is_screen:
        trio.run(until_interrupted, partial(show, lambda view: write(one_line(view))))
    else:
        with _screen(console) as draw, _single_keys():
            trio.run(until_interrupted, partial(_run_until_quit, partial(show, draw)))
    return last[0] if last else None


async def _run_until_quit(show: Callable[[], Awaitable[None]]) -> None:
    """Run `show` until the user types `q`."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(show)
        while sys.stdin.isatty():
            await trio.lowlevel.wait_readable(sys.stdin.fileno())
            typed = os.read(sys.stdin.fileno(), 64)
            if not typed or any(key in QUIT_KEYS for key in typed):
                nursery.cancel_scope.cancel()
                break


@contextmanager
def _screen(console: Console) -> Iterator[Callable[[View], None]]:
    """Switch to the terminal's alternate screen and yield a function that draws a view.

    Restore the first screen at the end.
    """
    from rich.console import Console as RichConsole
    from rich.live import Live
    from rich.text import Text

    screen = RichConsole(no_color=not console.is_colored, highlight=False, markup=False)

    def text_of(lines: list[Line]) -> Text:
        text = Text(no_wrap=True, overflow="crop", end="")
        for place, line in enumerate(lines):
            for piece, style in line:
                text.append(piece, _STYLES.get(style, ""))
            if place < len(lines) - 1:
                text.append("\n")
        return text

    with Live(console=screen, screen=True, auto_refresh=False) as live:

        def draw(view: View) -> None:
            width, height = screen.size
            lines = screen_lines(view, width, height, plain=not console.unicode)
            live.update(text_of(lines), refresh=True)

        yield draw


@contextmanager
def _single_keys() -> Iterator[None]:
    """Read single keys without echo; Ctrl-C stays unchanged."""
    if not sys.stdin.isatty():
        yield
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def last_words(view: View | None) -> str:
    """Return the text that stays on the terminal after the view is closed."""
    if view is None:
        return ""
    width, height = shutil.get_terminal_size()
    return "\n".join(line_text(line) for line in screen_lines(view, width, height)[:-1])
