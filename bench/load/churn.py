"""Churn: disconnections and reconnections of subscribers as the workload defines.

A disconnected subscriber does not subscribe anew. Its client library resumes from its last
acknowledgement. Each completed absence is a line of absences.jsonl, from which checkers derive the
publications at risk. A late return delays the next absence.

Paper: [DS03] §5.1.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import trio

from bench.load.load_clients import SubscriberClient
from bench.load.process_subscriber import ProcessSubscriber
from brokerd.units import SECOND_NS

_POLL_S: Final = 0.02


class Churn:
    """The absences of one load generator's subscribers.

    Args:
        start: starts a task that lives as long as the load generator.
        write_line: appends a line to a file of this name.
    """

    def __init__(
        self,
        clients: Sequence[SubscriberClient | ProcessSubscriber],
        start: Callable[..., None],
        write_line: Callable[[str, Mapping[str, Any]], None],
    ) -> None:
        self._clients = clients
        self._start = start
        self._write_line = write_line

    async def on_churn(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Handle command `churn`: measure_from_ns, the origin of all absences."""
        for client in self._clients:
            if client.absences:
                self._start(self._keep_away, client, arguments["measure_from_ns"])
        return {}

    async def _keep_away(
        self, client: SubscriberClient | ProcessSubscriber, measure_from_ns: int
    ) -> None:
        for from_ns, to_ns in client.absences:
            await _sleep_until(measure_from_ns + from_ns)
            session, left_ns = client.session, time.monotonic_ns()
            client.gate.shut()
            # The absence has its full length even if this process is late.
            await _sleep_until(left_ns + to_ns - from_ns)
            back_ns = time.monotonic_ns()
            client.gate.open()
            line = {"subscriber": client.name, "t_left_ns": left_ns, "t_back_ns": back_ns}
            self._write_line("absences", line)
            # Two absences without a session in between would be one long absence.
            while client.session == session:
                await trio.sleep(_POLL_S)


async def _sleep_until(at_ns: int) -> None:
    while (left_ns := at_ns - time.monotonic_ns()) > 0:
        await trio.sleep(left_ns / SECOND_NS)
