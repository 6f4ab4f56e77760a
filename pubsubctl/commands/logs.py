"""`logs`: log files of brokers, load generators and agents."""

import json
import re
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pubsubctl.commands import names
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import Invocation, invocation
from pubsubctl.errors import HostError, PreflightFailed, Unreachable, UserError

if TYPE_CHECKING:
    from pubsubctl.hosts.hosts import Lab
    from pubsubctl.watching.logbook import LogLine, Tail


def logs(
    context: typer.Context,
    brokers: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[BROKER...]",
            help="Whose logs: brokers, or `agent`; by default all.",
            autocompletion=names.logged,
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as more is written; Ctrl-C ends.")
    ] = False,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="D", help="Only what is not older than this: 30s, 5min."),
    ] = None,
    grep: Annotated[
        str | None, typer.Option("--grep", metavar="RE", help="Only lines that match.")
    ] = None,
    merge: Annotated[
        bool,
        typer.Option("--merge", help="Sort lines by time across brokers and hosts, and show it."),
    ] = False,
    lines: Annotated[
        int, typer.Option("--lines", metavar="N", min=1, help="At most this many of each file.")
    ] = 100,
    statistics: Annotated[
        bool, typer.Option("--statistics", help="Also the counters that are written each second.")
    ] = False,
) -> Result | None:
    """Print the end of brokers' logs; during a run, of the logs of that run.

    Times are those of this machine's clock, whatever the hosts' clocks say.
    """
    import trio

    from brokerd.units import parse_duration_ns
    from pubsubctl.console.interruption import until_interrupted
    from pubsubctl.hosts.hosts import Lab, reached
    from pubsubctl.watching.logbook import last_of_each, merged, selected, shown

    call = invocation(context)
    call.refuse_dry_run("logs")
    try:
        pattern = re.compile(grep or "")
    except re.error as error:
        raise UserError(f"--grep = {grep!r}: {error}") from None
    try:
        since_ns = time.time_ns() - parse_duration_ns(since) if since is not None else 0
    except ValueError as error:
        raise UserError(f"--since: {error}") from None
    inventory = call.inventory()
    lab = Lab.of(inventory, call.hosts(inventory), call.forks)

    def prepared(found: "list[LogLine]") -> "list[LogLine]":
        found = selected(found, pattern, since_ns)
        return merged(found) if merge else found

    if not follow:
        reader = _Reader(lab, brokers or [], statistics)

        async def once() -> "list[LogLine]":
            return await reader.read()

        found = prepared(last_of_each(trio.run(reached, lab, once), lines))
        width = max((len(f"{line.host}/{line.process}") for line in found), default=0)
        return Result(
            document={
                "schema": "pubsubctl/logs/2",
                "lines": [line.to_mapping() for line in found],
                "unreachable": [str(error) for error in reader.lost],
            },
            text="\n".join(shown(line, with_time=merge, names=width) for line in found),
            because=tuple(HostError(*error.problems) for error in reader.lost),
        )

    async def on_and_on() -> None:
        async with lab.opened():
            reader = _Reader(lab, brokers or [], statistics)
            is_first = True
            while True:
                found = await reader.read()
                if is_first:
                    for error in reader.lost:
                        call.console.warn(str(error))
                    found, is_first = last_of_each(found, lines), False
                for line in prepared(found):
                    _print(call, line, with_time=merge)
                await trio.sleep(FOLLOW_EVERY_S)

    trio.run(until_interrupted, on_and_on)
    return None


FOLLOW_EVERY_S = 0.5


def _print(call: Invocation, line: "LogLine", *, with_time: bool) -> None:
    from pubsubctl.watching.logbook import shown

    if call.console.as_json:
        call.console.line(json.dumps({"schema": "pubsubctl/log-line/1", **line.to_mapping()}))
    else:
        call.console.line(shown(line, with_time=with_time, names=12))


class _Reader:
    """A reader for the logs of some processes on all their hosts.

    Attributes:
        lost: the reasons for missing hosts, after the first `read`.
    """

    def __init__(self, lab: "Lab", wanted: list[str], statistics: bool) -> None:
        self._lab = lab
        self._wanted = wanted
        self._statistics = statistics
        self._agents: dict[str, Any] = {}
        self._places: list[tuple[str, str]] = []
        self._tails: dict[tuple[str, str, str], Tail] = {}
        self.lost: list[Unreachable] = []

    async def read(self) -> "list[LogLine]":
        """Return new lines since the last call, host by host.

        Raises:
            ExceptionGroup: of Unreachable, if no host can be reached.
            ControlError: a host that answered before no longer answers.
        """
        import trio

        from pubsubctl.watching.logbook import AGENT, Tail, run_folder

        if not self._places:
            await self._find()
        found: dict[tuple[str, str], list[LogLine]] = {place: [] for place in self._places}

        async def of_host(host: str) -> None:
            agent = self._agents[host]
            for process in [process for at, process in self._places if at == host]:
                folders = ["agent"] if process == AGENT else [""]
                if process != AGENT and (folder := await run_folder(agent, process)):
                    folders.append(folder)
                for folder in folders:
                    key = (host, process, folder)
                    tail = self._tails.setdefault(
                        key, Tail(host, process, folder, with_noise=self._statistics)
                    )
                    found[host, process] += await tail.read(agent)

        async with trio.open_nursery() as nursery:
            for host in self._agents:
                nursery.start_soon(of_host, host)
        return [line for lines in found.values() for line in lines]

    async def _find(self) -> None:
        from pubsubctl.deploying.deployment import placed_broker
        from pubsubctl.deploying.placement import Placement
        from pubsubctl.state import recorded_deployment
        from pubsubctl.watching.logbook import AGENT

        record = await recorded_deployment(self._lab)
        if record is None:
            raise PreflightFailed("nothing is deployed, so there are no logs")
        placement = Placement.from_mapping(record["placement"])
        here = {connector.host.name for connector in self._lab.connectors}
        named = [name for name in self._wanted if name != AGENT]
        chosen = [placed_broker(placement, name) for name in named]
        if not self._wanted:
            chosen = list(placement.brokers)
        self._places = [(row.host, row.broker) for row in chosen if row.host in here]
        if AGENT in self._wanted or not self._wanted:
            self._places += [(host, AGENT) for host in placement.hosts if host in here]
        for host in dict.fromkeys(host for host, _ in self._places):
            try:
                self._agents[host] = (await self._lab.hold_agent(host)).value
            except Unreachable as error:
                self.lost.append(error)
        if not self._agents and self.lost:
            raise ExceptionGroup("no host can be asked", self.lost)
        self._places = [place for place in self._places if place[0] in self._agents]
