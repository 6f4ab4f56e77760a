"""`logs` and `exec`: log files of processes, and commands of the user on hosts."""

import json
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pubsubctl.commands import names
from pubsubctl.commands.options.grouping import options_in
from pubsubctl.console.console import Result, visible
from pubsubctl.console.invocation import Invocation, invocation
from pubsubctl.errors import HostError, PubsubctlError, Unreachable, UserError

if TYPE_CHECKING:
    from pubsubctl.hosts.connectors.base import Connector, Ran
    from pubsubctl.hosts.hosts import Lab
    from pubsubctl.monitor.logbook import LogLine, Tail

_selection_option = options_in("Selection")


@dataclass(frozen=True, slots=True, kw_only=True)
class LineOptions:
    """Options that select and order log lines."""

    since: Annotated[
        str | None,
        _selection_option(
            "--since", metavar="TIME", help="Print lines of this age at most: 30s, 5min."
        ),
    ] = None
    grep: Annotated[
        str | None, _selection_option("--grep", metavar="RE", help="Print lines that match.")
    ] = None
    merge: Annotated[
        bool, _selection_option("--merge", help="Sort lines of all hosts by time.")
    ] = False
    lines: Annotated[
        int,
        _selection_option("--lines", metavar="N", min=1, help="Print at most N lines per file."),
    ] = 100
    statistics: Annotated[
        bool, _selection_option("--statistics", help="Print the counters of each second, too.")
    ] = False


@dataclass(frozen=True, slots=True)
class _Selection:
    """The lines to print."""

    pattern: "re.Pattern[str]"
    since_ns: int
    merge: bool
    lines: int

    @classmethod
    def of(cls, options: LineOptions) -> "_Selection":
        """Return the selection of a command line.

        Raises:
            UserError: the pattern or the duration is invalid.
        """
        from brokerd.units import parse_duration_ns

        try:
            pattern = re.compile(options.grep or "")
        except re.error as error:
            raise UserError(f"--grep = {options.grep!r}: {error}") from None
        since_ns = 0
        if options.since is not None:
            try:
                since_ns = time.time_ns() - parse_duration_ns(options.since)
            except ValueError as error:
                raise UserError(f"--since = {options.since!r}: {error}") from None
        return cls(pattern, since_ns, options.merge, options.lines)

    def select(self, found: "list[LogLine]") -> "list[LogLine]":
        """Return the lines to print, in order."""
        from pubsubctl.monitor.logbook import merge_lines, select_lines

        found = select_lines(found, self.pattern, self.since_ns)
        return merge_lines(found) if self.merge else found


def logs(
    context: typer.Context,
    options: LineOptions,
    brokers: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[BROKER...]",
            help="Brokers, or `agent`. All if none is named.",
            autocompletion=names.logged_processes,
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines until Ctrl-C.")
    ] = False,
) -> Result | None:
    """Print the last lines of brokers' logs.

    Includes the logs of the present run. Times are those of this machine's clock. In a pipe or a
    file, each line is a JSON object.
    """
    import trio

    from pubsubctl.console.interruption import until_interrupted
    from pubsubctl.hosts.hosts import Lab, run_reaching
    from pubsubctl.monitor.logbook import last_of_each

    call = invocation(context)
    if call.dry_run:
        raise UserError(
            "`logs` has no --dry-run (-n); --lines N prints the last N lines of each file"
        )
    selection = _Selection.of(options)
    inventory = call.inventory()
    lab = Lab.of(inventory, call.hosts(inventory), call.forks)
    reader = _Reader(lab, brokers or [], options.statistics)
    if not follow:
        found = last_of_each(trio.run(run_reaching, lab, reader.read), selection.lines)
        return _lines(call, selection.select(found), reader.lost)
    trio.run(until_interrupted, lambda: _follow(call, lab, reader, selection))
    return None


def execute(
    context: typer.Context,
    command: Annotated[
        list[str], typer.Argument(metavar="-- CMD...", help="The command, word by word.")
    ],
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="TIME", help="Stop the command after this time.")
    ] = "60s",
) -> Result:
    """Run a command on hosts, at most --forks at a time.

    Runs on the hosts that --limit selects, word by word and without a shell; write `sh -c '…'` for
    a shell. A host of SSH runs the command in the login folder, a local host in its own folder;
    before a deployment in your home folder. Status 5: the command failed on a host.
    """
    import shlex

    import trio

    from brokerd.units import parse_duration_ns
    from pubsubctl.hosts.hosts import Lab, run_reaching

    call = invocation(context)
    try:
        timeout_s = parse_duration_ns(timeout) / 1e9
    except ValueError as error:
        raise UserError(f"--timeout = {timeout!r}: {error}") from None
    inventory = call.inventory()
    lab = Lab.of(inventory, call.hosts(inventory), call.forks)
    if call.dry_run:
        hosts = ", ".join(connector.host.name for connector in lab.connectors)
        text = f"would run {shlex.join(command)} on {hosts}"
        return Result(document={"schema": "pubsubctl/exec/1", "hosts": []}, text=text)
    done: dict[str, Ran | PubsubctlError] = {}

    async def run_on(connector: "Connector") -> None:
        try:
            done[connector.host.name] = await connector.run(command, timeout_s)
        except PubsubctlError as error:
            done[connector.host.name] = error

    trio.run(run_reaching, lab, lambda: lab.on_all(run_on))
    ordered = {connector.host.name: done[connector.host.name] for connector in lab.connectors}
    return _outputs(call, command, ordered)


def _outputs(
    call: Invocation, command: list[str], answers: "dict[str, Ran | PubsubctlError]"
) -> Result:
    width = max(map(len, answers))
    lines: list[str] = []
    rows: list[dict[str, object]] = []
    because: list[PubsubctlError] = []
    for host, answer in answers.items():
        if isinstance(answer, PubsubctlError):
            because.append(answer)
            rows.append({"host": host, "status": None, "error": str(answer)})
            continue
        out, err = (part.decode("utf-8", "replace") for part in (answer.stdout, answer.stderr))
        lines += [f"{host:{width}} | {visible(line)}" for line in out.splitlines()]
        for line in err.splitlines():
            call.console.print(f"{host:{width}} ! {visible(line)}")
        if answer.status:
            ended = "was ended by a signal" if answer.status < 0 else f"status {answer.status}"
            because.append(HostError(f"host {host}: {command[0]}: {ended}"))
        rows.append({"host": host, "status": answer.status, "stdout": out, "stderr": err})
    if not all(isinstance(error, Unreachable) for error in because) or len(because) < len(answers):
        because = [
            HostError(*error.problems) if isinstance(error, Unreachable) else error
            for error in because
        ]
    return Result(
        document={"schema": "pubsubctl/exec/1", "command": command, "hosts": rows},
        text="\n".join(lines),
        because=tuple(because),
    )


async def _follow(call: Invocation, lab: "Lab", reader: "_Reader", selection: _Selection) -> None:
    import trio

    from pubsubctl.monitor.logbook import last_of_each

    async with lab.open():
        is_first = True
        while True:
            found = await reader.read()
            if is_first:
                for error in reader.lost:
                    call.console.warn(str(error))
                found, is_first = last_of_each(found, selection.lines), False
            for line in selection.select(found):
                _print(call, line)
            await trio.sleep(FOLLOW_EVERY_S)


def _lines(call: Invocation, found: "list[LogLine]", lost: list[Unreachable]) -> Result:
    width = max((len(f"{line.host}/{line.process}") for line in found), default=0)
    return Result(
        document={
            "schema": "pubsubctl/logs/2",
            "lines": [line.to_mapping() for line in found],
            "unreachable": [str(error) for error in lost],
        },
        text="\n".join(_text(call, line, width) for line in found),
        because=tuple(HostError(*error.problems) for error in lost),
    )


FOLLOW_EVERY_S = 0.5


def _print(call: Invocation, line: "LogLine") -> None:
    if call.console.as_json:
        call.console.line(json.dumps({"schema": "pubsubctl/log-line/1", **line.to_mapping()}))
    else:
        call.console.line(_text(call, line, 12))


def _text(call: Invocation, line: "LogLine", names: int) -> str:
    """Return a line: readable with its time on a terminal, a JSON object in a pipe."""
    from pubsubctl.monitor.logbook import json_line, shown

    if call.console.is_read_by_people:
        return shown(line, with_time=True, names=names)
    return json_line(line)


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

        from pubsubctl.monitor.logbook import AGENT, Tail, run_folder

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
        from pubsubctl.deployment.deployment import find_placement, nothing_deployed
        from pubsubctl.deployment.newest_record import read_deployment
        from pubsubctl.deployment.placement import Placement
        from pubsubctl.monitor.logbook import AGENT

        record = await read_deployment(self._lab)
        if record is None:
            raise nothing_deployed(self._lab.inventory, "logs")
        placement = Placement.from_mapping(record["placement"])
        here = {connector.host.name for connector in self._lab.connectors}
        named = [name for name in self._wanted if name != AGENT]
        chosen = [find_placement(placement, name) for name in named]
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
            raise ExceptionGroup("no host answers", self.lost)
        self._places = [place for place in self._places if place[0] in self._agents]
