"""The load generators of a run as the coordinator has them: started, told, waited for, ended.

They share the machine with what they measure, and may answer late. A late answer is waited for,
with a line that says whose; it fails a run only after minutes, or when the process has ended. Until
there is load, so does the first problem that one has: what it has not got then never comes.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from typing import Any, Final

import trio

from bench.load.load_plan import LoadProcess
from bench.load.patience import Drained, Patience
from bench.load.progress import Progress, RunFailed
from bench.run.testbed import Testbed
from brokerd.errors import ControlError

ATTACH_TIMEOUT_S: Final = 30.0
SUBSCRIBE_TIMEOUT_S: Final = 60.0
TIMEOUT_PER_BROKER_S: Final = 0.5
TIMEOUT_PER_CLIENT_S: Final = 0.05
ANSWER_PATIENCE_MS: Final = 300_000

_POLL_S: Final = 0.05
_PATIENCE_S: Final = 2.0
_SAY_EVERY_S: Final = 10.0
_WORDS_BYTES: Final = 2_000


class LoadControl:
    """What the coordinator does with the load generators of one run.

    Attributes:
        processes: all of them.
        started: those that were started so far.
        finished: what each said at its end.
    """

    def __init__(self, testbed: Testbed, processes: list[LoadProcess], progress: Progress) -> None:
        self.processes = processes
        self.started: list[LoadProcess] = []
        self.finished: dict[str, dict[str, Any]] = {}
        self._testbed = testbed
        self._progress = progress

    @property
    def publishing(self) -> list[LoadProcess]:
        """Those with publishers."""
        return [process for process in self.processes if process.publishers]

    @property
    def subscribing(self) -> list[LoadProcess]:
        """Those with subscribers."""
        return [process for process in self.processes if process.subscribers]

    # ------------------------------------------------------------ before the load

    async def start(self, certificate: Mapping[str, str] | None) -> None:
        """Start all of them, each with this certificate for its clients."""
        for process in self.processes:
            config = {**process.config, "tls": certificate}
            await self._testbed.clients_agent.start(
                process.name, process.program, config, process.config["control_socket"]
            )
            self.started.append(process)
            with trio.move_on_after(self.timeout_s(ATTACH_TIMEOUT_S)) as waiting:
                await self._wait_up(process)
            if waiting.cancelled_caught:
                text = f"load generator {process.name} did not come up; see its stderr.log"
                raise RunFailed(text)

    async def _wait_up(self, process: LoadProcess) -> None:
        while True:
            try:
                await self._testbed.load_command(process.name, "status")
                return
            except ControlError as error:
                if error.kind != "busy":
                    said = await self._last_words(process) or str(error)
                    raise RunFailed(f"load generator {process.name} has ended: {said}") from error
            await trio.sleep(_POLL_S)

    async def _last_words(self, process: LoadProcess) -> str:
        """The last line that it has printed; an exception's, if that was its end."""
        tails = await self._testbed.clients_agent.tail(process.name, {}, last_bytes=_WORDS_BYTES)
        printed = [file["data"] for file in tails["files"] if file["name"] == "stderr.log"]
        lines = b"".join(printed).decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    async def attach(self) -> None:
        """Connect all clients, and let subscribers know who publishes."""
        await self.tell_all("connect")
        await self._need(
            ATTACH_TIMEOUT_S, self._who("not_attached", "attach", "attached", self.processes)
        )
        publishers = await self.publishers()
        for process in self.subscribing:
            await self.tell(process, "know_publishers", publishers=publishers)

    async def subscribe(self) -> None:
        """Subscribe for all, and wait until every subscription has started."""
        await self.tell_all("subscribe")
        what = "start their subscriptions"
        await self._need(
            SUBSCRIBE_TIMEOUT_S, self._who("not_started", what, "started", self.subscribing)
        )

    # ------------------------------------------------------------ what is said

    async def tell(self, process: LoadProcess, command: str, **arguments: Any) -> dict[str, Any]:
        """What one of them answers, however long that takes within reason.

        Raises:
            ControlError: it has ended, refuses, or did not answer for ANSWER_PATIENCE_MS.
        """
        answers: list[dict[str, Any]] = []
        failures: list[ControlError] = []
        over = trio.Event()

        async def ask() -> None:
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
            nursery.start_soon(ask)
            while not over.is_set():
                with trio.move_on_after(_SAY_EVERY_S):
                    await over.wait()
                if not over.is_set():
                    waited_s = trio.current_time() - began_s
                    self._progress.say(
                        f"{process.name} has not answered {command} for {waited_s:.0f} s; "
                        "it is waited for"
                    )
        if failures:
            raise failures[0]
        return answers[0]

    async def tell_all(self, command: str) -> list[dict[str, Any]]:
        """What each of them answers."""
        return [await self.tell(process, command) for process in self.processes]

    async def publishers(self) -> list[dict[str, Any]]:
        """Every publisher, as its load generator describes it."""
        answers = [await self.tell(process, "publishers") for process in self.publishing]
        return [publisher for answer in answers for publisher in answer["publishers"]]

    async def now_ns(self) -> int:
        """The clock that all stamps of this run are of."""
        status = await self.tell(self.processes[0], "status")
        return int(status["now_ns"])

    async def show(self) -> None:
        """Tell how it goes."""
        self._show(await self.tell_all("status"))

    def _show(self, statuses: Iterable[Mapping[str, Any]]) -> None:
        totals: dict[str, int] = {}
        for status in statuses:
            for name in ("sent", "delivered", "backlog"):
                totals[name] = totals.get(name, 0) + status[name]
        self._progress.update(totals)

    # ------------------------------------------------------------ facts to wait for

    def timeout_s(self, limit_s: float) -> float:
        """As much, and more where many brokers and clients share the machines."""
        clients = sum(len(each.publishers) + len(each.subscribers) for each in self.processes)
        brokers = len(self._testbed.brokers)
        return limit_s + TIMEOUT_PER_BROKER_S * brokers + TIMEOUT_PER_CLIENT_S * clients

    async def open(self, limit_s: float) -> None:
        """Let every publisher publish its opening fence, and wait until all that has come."""
        limit_s = self.timeout_s(limit_s)
        patience = Patience(trio.current_time(), limit_s, limit_s)
        if waiting_for := await self._fence("opening", patience, before_load=True):
            raise RunFailed(f"waited {limit_s:g} s for {waiting_for}")

    async def _arrived(self) -> int:
        """Return how many publications were sent and delivered, of all clients together."""
        statuses = await self.tell_all("status")
        return sum(int(status["sent"]) + int(status["delivered"]) for status in statuses)

    async def close(self, limit_s: float, bound_s: float) -> Drained:
        """Let every publisher publish its closing fence, and wait until everything has arrived.

        The wait is over after `limit_s`, unless deliveries still arrive; then after `bound_s`.
        """
        patience = Patience(trio.current_time(), limit_s, bound_s)
        waiting_for = await self._fence("closing", patience, before_load=False)
        if not waiting_for:
            return Drained("evidence", "")
        is_bound = patience.is_at_bound(trio.current_time())
        return Drained("bound" if is_bound else "silence", waiting_for)

    async def _fence(self, kind: str, patience: Patience, *, before_load: bool) -> str:
        for process in self.publishing:
            await self.tell(process, "fence")
        fenced = self._who(
            "not_fenced", f"publish a {kind} fence", "fenced", self.publishing, before_load
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
        for process in self.subscribing:
            await self.tell(process, "expect_fences", fences=fences)
        return unpublished or await self._wait(patience, partial(self._unsettled, before_load))

    async def _wait(self, patience: Patience, awaited: Callable[[], Awaitable[str]]) -> str:
        """Ask until nothing is awaited any more or patience is over; return the last answer.

        At least once is asked, so a fact that holds already is never too late.
        """
        said_after = trio.current_time() + _PATIENCE_S
        while True:
            asked_s = trio.current_time()
            waiting_for = await awaited()
            now_s = trio.current_time()
            if not waiting_for:
                return waiting_for
            if patience.is_over(now_s):
                if not patience.is_at_bound(now_s):
                    patience.note_arrivals(now_s, await self._arrived())
                if patience.is_over(now_s):
                    return waiting_for
            if now_s >= said_after:
                self._progress.say(f"waiting for {waiting_for}")
                said_after = now_s + 5 * _PATIENCE_S
            # Who takes long to answer has better things to do than to answer again at once.
            await trio.sleep(max(_POLL_S, now_s - asked_s))

    async def _need(self, limit_s: float, awaited: Callable[[], Awaitable[str]]) -> None:
        """As `_wait`, and RunFailed when it was not enough."""
        limit_s = self.timeout_s(limit_s)
        patience = Patience(trio.current_time(), limit_s, limit_s)
        waiting_for = await self._wait(patience, awaited)
        if waiting_for:
            raise RunFailed(f"waited {limit_s:g} s for {waiting_for}")

    async def _statuses(
        self, processes: list[LoadProcess], before_load: bool
    ) -> list[dict[str, Any]]:
        """How they are; RunFailed with the first problem if there is to be no load with any."""
        statuses = [await self.tell(process, "status") for process in processes]
        for text in chain.from_iterable(status.get("problems", ()) for status in statuses):
            if before_load:
                raise RunFailed(text.removesuffix(" (1 times)"))
        return statuses

    def _who(
        self,
        key: str,
        to_do_what: str,
        done: str,
        processes: list[LoadProcess],
        before_load: bool = True,
    ) -> Callable[[], Awaitable[str]]:
        """A fact to wait for: nobody is in the status list `key` any more."""
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
            return f"{', '.join(names[:3])}{more} to {to_do_what}{why}"

        return awaited

    async def _unsettled(self, before_load: bool) -> str:
        """Fences that have not arrived, or what they should be behind, and open publications."""
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
        """End all of them in order, and their files with them; returns what went wrong."""
        problems: list[str] = []

        async def finish(process: LoadProcess) -> None:
            try:
                self.finished[process.name] = await self.tell(process, "finish")
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
