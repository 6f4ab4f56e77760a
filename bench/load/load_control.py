"""Control of the load generators of a run, and the end of its drain.

A drain ends on evidence, in silence, or at its bound. A drain that ends while deliveries still
arrive is no evidence about missing deliveries. So the drain continues while anything arrives, up to
a bound. A run with a drain that ended at the bound is judged UNKNOWN.

Load generators share the machine with the brokers, and may answer late. The coordinator waits for a
late answer, and shows a line with the name of the process. A run fails only after minutes, or at
the end of the process. Before the load begins, any problem of a load generator fails the run,
because the awaited clients would then never be ready.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final, Literal

import trio

from bench.load.load_plan import LoadProcess
from bench.run.testbed import Progress, RunFailed, Testbed
from brokerd.errors import ControlError

QUIET_S: Final = 5.0
"""Time without arrivals behind the limit that counts as silence."""

DrainEnd = Literal["evidence", "silence", "bound"]


@dataclass(frozen=True, slots=True)
class DrainOutcome:
    """The end of a drain.

    Attributes:
        ended_by: `evidence`: everything arrived; `silence`: something did not, and nothing else
            arrived any more; `bound`: something did not, and deliveries still arrived.
        waiting_for: what had not arrived, in words.
    """

    ended_by: DrainEnd
    waiting_for: str


class Patience:
    """The time that a wait may take: a limit, and a bound while something arrives.

    Args:
        began_s: the instant at which the wait began.
        limit_s: the length of a wait in which nothing arrives behind it.
        bound_s: the length of any wait.
    """

    def __init__(self, began_s: float, limit_s: float, bound_s: float) -> None:
        assert limit_s <= bound_s, f"{limit_s} s of {bound_s} s"
        self._limit_s = began_s + limit_s
        self._bound_s = began_s + bound_s
        self._arrived: int | None = None
        self._arrived_s = began_s

    def is_over(self, now_s: float) -> bool:
        """Return True if the wait is over, by the recorded arrivals."""
        if self.is_at_bound(now_s):
            return True
        is_quiet = now_s - self._arrived_s >= QUIET_S
        return now_s >= self._limit_s and (self._arrived is None or is_quiet)

    def is_at_bound(self, now_s: float) -> bool:
        return now_s >= self._bound_s

    def note_arrivals(self, now_s: float, arrived: int) -> None:
        """Record the total number of arrivals."""
        if arrived != self._arrived:
            self._arrived, self._arrived_s = arrived, now_s


ATTACH_TIMEOUT_S: Final = 30.0
SUBSCRIBE_TIMEOUT_S: Final = 60.0
TIMEOUT_PER_BROKER_S: Final = 0.5
TIMEOUT_PER_CLIENT_S: Final = 0.05
ANSWER_PATIENCE_MS: Final = 300_000

_POLL_S: Final = 0.05
_PATIENCE_S: Final = 2.0
_REPORT_EVERY_S: Final = 10.0
_WORDS_BYTES: Final = 2_000


class LoadControl:
    """The control of the load generators of one run.

    Attributes:
        processes: all load generators.
        started: the started load generators.
        finished: final report of each load generator.
    """

    def __init__(self, testbed: Testbed, processes: list[LoadProcess], progress: Progress) -> None:
        self.processes = processes
        self.started: list[LoadProcess] = []
        self.finished: dict[str, dict[str, Any]] = {}
        self._testbed = testbed
        self._progress = progress

    @property
    def publisher_processes(self) -> list[LoadProcess]:
        return [process for process in self.processes if process.publishers]

    @property
    def subscriber_processes(self) -> list[LoadProcess]:
        return [process for process in self.processes if process.subscribers]

    # ------------------------------------------------------------ before the load

    async def start(self, certificate: Mapping[str, str] | None, specification_digest: str) -> None:
        """Start all load generators, with this certificate for their clients."""
        for process in self.processes:
            config = {
                **process.config,
                "tls": certificate,
                "specification_digest": specification_digest,
            }
            await self._testbed.clients_agent.start(
                process.name, process.program, config, process.config["control_socket"]
            )
            self.started.append(process)
            with trio.move_on_after(self.timeout_s(ATTACH_TIMEOUT_S)) as waiting:
                await self._wait_up(process)
            if waiting.cancelled_caught:
                text = f"load generator {process.name} did not start; see its stderr.log"
                raise RunFailed(text)

    async def _wait_up(self, process: LoadProcess) -> None:
        while True:
            try:
                await self._testbed.load_command(process.name, "status")
                return
            except ControlError as error:
                if error.kind != "busy":
                    output = await self._last_words(process) or str(error)
                    raise RunFailed(f"load generator {process.name} has ended: {output}") from error
            await trio.sleep(_POLL_S)

    async def _last_words(self, process: LoadProcess) -> str:
        """Return the last line of stderr, which is the message of a fatal exception."""
        tails = await self._testbed.clients_agent.tail(process.name, {}, last_bytes=_WORDS_BYTES)
        printed = [file["data"] for file in tails["files"] if file["name"] == "stderr.log"]
        lines = b"".join(printed).decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    async def attach(self) -> None:
        """Connect all clients, and announce the publishers to all subscribers."""
        await self.send_all("connect")
        await self._need(
            ATTACH_TIMEOUT_S,
            self._until_empty("not_attached", "attach", "attached", self.processes),
        )
        publishers = await self.publishers()
        for process in self.subscriber_processes:
            await self.send(process, "know_publishers", publishers=publishers)

    async def subscribe(self) -> None:
        """Subscribe all clients, and wait until every subscription has started."""
        await self.send_all("subscribe")
        subject = "start their subscriptions"
        await self._need(
            SUBSCRIBE_TIMEOUT_S,
            self._until_empty("not_started", subject, "started", self.subscriber_processes),
        )

    # ------------------------------------------------------------ commands

    async def send(self, process: LoadProcess, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a command to a load generator and return the answer, however late within reason.

        Raises:
            ControlError: the process has ended, refuses, or did not answer for ANSWER_PATIENCE_MS.
        """
        answers: list[dict[str, Any]] = []
        failures: list[ControlError] = []
        over = trio.Event()

        async def request() -> None:
            try:
                answers.append(
                    await self._testbed.load_command(
                        process.name, command, ANSWER_PATIENCE_MS, **arguments
                    )
                )
            except ControlError as error:
                failures.append(error)
            over.set()

        began_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(request)
            while not over.is_set():
                with trio.move_on_after(_REPORT_EVERY_S):
                    await over.wait()
                if not over.is_set():
                    waited_s = trio.current_time() - began_s
                    self._progress.print(
                        f"{process.name} has not answered {command} for {waited_s:.0f} s; "
                        "it is waited for"
                    )
        if failures:
            raise failures[0]
        return answers[0]

    async def send_all(self, command: str) -> list[dict[str, Any]]:
        """Send a command to every load generator, and return the answers."""
        return [await self.send(process, command) for process in self.processes]

    async def publishers(self) -> list[dict[str, Any]]:
        """Return the descriptions of all publishers by their load generators."""
        answers = [await self.send(process, "publishers") for process in self.publisher_processes]
        return [publisher for answer in answers for publisher in answer["publishers"]]

    async def now_ns(self) -> int:
        """Return the time of the clock of all stamps of this run."""
        status = await self.send(self.processes[0], "status")
        return int(status["now_ns"])

    async def show(self) -> None:
        self._show(await self.send_all("status"))

    def _show(self, statuses: Iterable[Mapping[str, Any]]) -> None:
        totals: dict[str, int] = {}
        for status in statuses:
            for name in ("sent", "delivered", "backlog"):
                totals[name] = totals.get(name, 0) + status[name]
        self._progress.update(totals)

    # ------------------------------------------------------------ facts to wait for

    def timeout_s(self, limit_s: float) -> float:
        """Return a limit that is extended for the brokers and clients on the machines."""
        clients = sum(len(each.publishers) + len(each.subscribers) for each in self.processes)
        brokers = len(self._testbed.brokers)
        return limit_s + TIMEOUT_PER_BROKER_S * brokers + TIMEOUT_PER_CLIENT_S * clients

    async def open(self, limit_s: float) -> None:
        """Publish the opening fence of every publisher, and wait until all fences arrived."""
        limit_s = self.timeout_s(limit_s)
        patience = Patience(trio.current_time(), limit_s, limit_s)
        if waiting_for := await self._fence("opening", patience, before_load=True):
            raise RunFailed(f"waited {limit_s:g} s for {waiting_for}")

    async def _count_arrived(self) -> int:
        """Return how many publications were sent and delivered, of all clients together."""
        statuses = await self.send_all("status")
        return sum(int(status["sent"]) + int(status["delivered"]) for status in statuses)

    async def close(self, limit_s: float, bound_s: float) -> DrainOutcome:
        """Publish the closing fence of every publisher, and wait until everything has arrived.

        The wait is over after `limit_s`, unless deliveries still arrive; then after `bound_s`.
        """
        patience = Patience(trio.current_time(), limit_s, bound_s)
        waiting_for = await self._fence("closing", patience, before_load=False)
        if not waiting_for:
            return DrainOutcome("evidence", "")
        is_bound = patience.is_at_bound(trio.current_time())
        return DrainOutcome("bound" if is_bound else "silence", waiting_for)

    async def _fence(self, kind: str, patience: Patience, *, before_load: bool) -> str:
        for process in self.publisher_processes:
            await self.send(process, "fence")
        fenced = self._until_empty(
            "not_fenced", f"publish a {kind} fence", "fenced", self.publisher_processes, before_load
        )
        unpublished = await self._wait(patience, fenced)
        fences = [
            {
                "publisher": publisher["identity"],
                "incarnation": publisher["incarnation"],
                "sequence": sequence,
            }
            for publisher in await self.publishers()
            for sequence in publisher["fences"]
        ]
        for process in self.subscriber_processes:
            await self.send(process, "expect_fences", fences=fences)
        return unpublished or await self._wait(
            patience, partial(self._describe_unsettled, before_load)
        )

    async def _wait(self, patience: Patience, awaited: Callable[[], Awaitable[str]]) -> str:
        """Poll until nothing is awaited any more or patience is over; return the last answer.

        There is at least one poll, so a fact that is already true is never too late.
        """
        report_after = trio.current_time() + _PATIENCE_S
        while True:
            requested_s = trio.current_time()
            waiting_for = await awaited()
            now_s = trio.current_time()
            if not waiting_for:
                return waiting_for
            if patience.is_over(now_s):
                if not patience.is_at_bound(now_s):
                    patience.note_arrivals(now_s, await self._count_arrived())
                if patience.is_over(now_s):
                    return waiting_for
            if now_s >= report_after:
                self._progress.print(f"waiting for {waiting_for}")
                report_after = now_s + 5 * _PATIENCE_S
            # A slow answer shows a busy process, so the next poll follows later.
            await trio.sleep(max(_POLL_S, now_s - requested_s))

    async def _need(self, limit_s: float, awaited: Callable[[], Awaitable[str]]) -> None:
        """Wait as `_wait`, and raise RunFailed if the wait did not succeed."""
        limit_s = self.timeout_s(limit_s)
        patience = Patience(trio.current_time(), limit_s, limit_s)
        waiting_for = await self._wait(patience, awaited)
        if waiting_for:
            raise RunFailed(f"waited {limit_s:g} s for {waiting_for}")

    async def _statuses(
        self, processes: list[LoadProcess], before_load: bool
    ) -> list[dict[str, Any]]:
        """Return the statuses; raise RunFailed with the first problem if `before_load`."""
        statuses = [await self.send(process, "status") for process in processes]
        for text in chain.from_iterable(status.get("problems", ()) for status in statuses):
            if before_load:
                raise RunFailed(text.removesuffix(" (1 times)"))
        return statuses

    def _until_empty(
        self,
        key: str,
        action: str,
        done: str,
        processes: list[LoadProcess],
        before_load: bool = True,
    ) -> Callable[[], Awaitable[str]]:
        """Return a condition to wait for: the list `key` of the statuses is empty."""
        total = sum(len(each.publishers) + len(each.subscribers) for each in processes)

        async def awaited() -> str:
            statuses = await self._statuses(processes, before_load)
            names = [name for status in statuses for name in status[key]]
            self._progress.update({done: f"{total - len(names)}/{total}"})
            if not names:
                return ""
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            failures = [why for status in statuses if (why := status.get("attach_failure"))]
            why = f" ({failures[0]})" if failures and key == "not_attached" else ""
            return f"{', '.join(names[:3])}{more} to {action}{why}"

        return awaited

    async def _describe_unsettled(self, before_load: bool) -> str:
        """Return in words the missing fences or publications, and the open publications."""
        statuses = await self._statuses(self.processes, before_load)
        self._show(statuses)
        fences = sum(status["fences_missing"] for status in statuses)
        open_publications = sum(status["open"] for status in statuses)
        holes = sum(status.get("holes", 0) for status in statuses)
        parts = [f"{fences} fences to arrive"] * bool(fences)
        parts += [f"{holes} publications to arrive"] * bool(holes)
        parts += [f"{open_publications} publications to be acknowledged"] * bool(open_publications)
        return " and ".join(parts)

    # ------------------------------------------------------------ the end

    async def finish(self) -> list[str]:
        """End all load generators and close their files in order; return the problems."""
        problems: list[str] = []

        async def finish(process: LoadProcess) -> None:
            try:
                self.finished[process.name] = await self.send(process, "finish")
            except ControlError as error:
                problems.append(f"load generator {process.name} could not end in order: {error}")
            try:
                await self._testbed.clients_agent.stop(process.name)
            except ControlError as error:
                problems.append(f"load generator {process.name} could not be stopped: {error}")

        async with trio.open_nursery() as nursery:
            for process in self.started:
                nursery.start_soon(finish, process)
        return problems
