"""Forged messages between brokers in the runs of seeds: a core refuses them, and does not fail.

    python -m tests.fuzz.forged --protocol gryphon --seeds 1..200

A seed of the swarm determines a cluster with clients and faults. Some of the messages between two
brokers arrive forged, as from a real neighbour on its session. A core may refuse such a message
with RemoteProtocolError, which closes the session. No forged message may let a core fail, at once
or later, nor let a core send a message that has no encoding.

Promises to clients are not judged: a neighbour has the deployment's key, and may state anything.
"""

import argparse
import sys
import traceback
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final
from unittest import mock

from brokerd.errors import RemoteProtocolError
from brokerd.protocols.interface import Event, MessageReceived, Send
from brokerd.protocols.registry import DEFINITIONS
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.search.moves import LaneChoice
from brokerd.simulator.search.plan_run import PlanRun
from brokerd.simulator.search.swarm import SwarmOptions, plan_of
from brokerd.simulator.world.broker import SimulatedBroker
from brokerd.simulator.world.client_mobility import home_of
from brokerd.simulator.world.clock import TimedSchedule
from brokerd.units import SECOND_NS
from tests.fuzz.forgeries import Forger, as_received, field_name, places_of
from tests.fuzz.values import message_of

SHARE: Final = 0.05
"""The share of messages between brokers that are forged."""
LONGEST_S: Final = 20
_LAST: Final = 12


class CoreFailed(Exception):
    """A core that failed with another error than RemoteProtocolError."""


@dataclass
class ForgedRun:
    """A seed of the swarm with forged messages between its brokers.

    Attributes:
        forged: number of forged messages that a core has handled.
        refused: number of messages that a core refused.
        failure: the report of the core that failed; "" without one.
        place: the last line of code of the failure.
        ended: the error outside of the cores that ended the run early; "" without one.
    """

    seed: int
    protocol: str
    reached: Counter[str] = field(default_factory=Counter)
    share: float = SHARE
    longest_s: float = LONGEST_S
    forged: int = 0
    refused: int = 0
    failure: str = ""
    place: str = ""
    ended: str = ""
    _latest: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST))

    def run(self) -> None:
        """Run the seed until its faults end, or a core fails."""
        kinds = [kind.type for kind in DEFINITIONS[self.protocol].messages]
        forger = Forger(Random(f"forged {self.seed}"), kinds, self.reached)
        run = PlanRun(plan_of(self.seed, self.protocol, SwarmOptions()), check_purity=False)
        run._strict = run.cluster.oracle._violations._strict = False
        with self._forging(forger):
            try:
                self._play(run)
            except CoreFailed:
                pass
            except (InvariantViolated, RemoteProtocolError, AssertionError) as error:
                # An honest client, or the simulator, after false statements.
                self.ended = f"{type(error).__name__}: {error}"[:300]

    def _play(self, run: PlanRun) -> None:
        plan, cluster, schedule = run._plan, run.cluster, run.cluster.schedule
        cluster.population.consumers = dict(plan.consumers)
        cluster.start()
        for publisher in plan.publishers:
            cluster.client(publisher, home_of(publisher), publishes=True)
        is_timed = isinstance(schedule, TimedSchedule)
        at = schedule.at if is_timed else run._schedule_step
        for move in plan.moves:
            if type(move) is not LaneChoice:
                at(move.when, move.apply, run._context)
        if isinstance(schedule, TimedSchedule):
            schedule.run_until(min(plan.heal, int(self.longest_s * SECOND_NS)))
        else:
            run._run_steps(0, min(plan.heal, int(self.longest_s * 200)))

    @contextmanager
    def _forging(self, forger: Forger) -> Iterator[None]:
        outer = self

        def handle_one(self: SimulatedBroker, event: Event) -> None:
            is_between = isinstance(event, MessageReceived) and isinstance(event.peer, int)
            if is_between and forger.random.random() < outer.share:
                event = outer._forge(forger, self, event)
            outer._handle(self, event)

        with mock.patch.object(SimulatedBroker, "_handle_one", handle_one):
            yield

    def _forge(self, forger: Forger, broker: SimulatedBroker, event: Any) -> Event:
        message = forger.forge(event.message)
        if message is None:
            received: Event = event
            return received
        self.forged += 1
        about = f"{broker.name} (session {event.session} with {event.peer})"
        self._latest.append(f"{about}: {message!r:.600} for {event.message!r:.600}")
        return MessageReceived(event.peer, event.session, message)

    def _handle(self, broker: SimulatedBroker, event: Event) -> None:
        """Handle an event as `SimulatedBroker` does, without observers; close refused sessions."""
        broker.events += 1
        broker._waited = False
        if broker._wrapper is not None:
            broker._wrapper.watch = None
        try:
            effects = broker.core.handle(event, broker.clock_ns)
        except Exception as error:
            if isinstance(error, RemoteProtocolError) and isinstance(event, MessageReceived):
                self.refused += 1
                broker._network.close(broker, event.peer, "protocol_error")
                return
            self._fail(broker, event, error)
            raise CoreFailed from error
        for effect in effects:
            if type(effect) is Send and self.forged and as_received(effect.message) is None:
                error = ValueError(f"{type(effect.message).__name__} has no encoding")
                self._fail(broker, effect.message, error)
                raise CoreFailed from error
            broker._perform[type(effect)](effect)

    def _fail(self, broker: SimulatedBroker, event: Any, error: Exception) -> None:
        text = "".join(traceback.format_exception(error))
        frames = traceback.extract_tb(error.__traceback__)[-1:]
        self.place = f"{frames[0].filename}:{frames[0].lineno}" if frames else str(error)
        self.failure = "\n".join(
            [*self._latest, f"{broker.name} at {event!r:.1500}", text[-2_500:]]
        )


def field_names(protocol: str) -> set[str]:
    """Return the fields of a protocol's messages, as they occur in arbitrary messages."""
    random = Random(protocol)
    return {
        field_name(kind.type, path)
        for kind in DEFINITIONS[protocol].messages
        for _ in range(100)
        for path, _, _ in places_of(message_of(kind.type, random), kind.type)
    }


def main() -> None:
    """Run seeds and print failures; exit with status 1 after a failure."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.forged")
    parser.add_argument("--protocol", choices=[*DEFINITIONS], action="append")
    parser.add_argument("--seeds", default="1..100")
    given = parser.parse_args()
    first, last = map(int, given.seeds.split(".."))
    failed = False
    for protocol in given.protocol or [*DEFINITIONS]:
        reached, places = Counter[str](), Counter[str]()
        forged = refused = ended = 0
        for seed in range(first, last + 1):
            run = ForgedRun(seed, protocol, reached)
            run.run()
            forged, refused = forged + run.forged, refused + run.refused
            ended += bool(run.ended)
            if run.failure:
                places[run.place] += 1
                if places[run.place] == 1:
                    print(f"{protocol}, seed {seed}:\n{run.failure}", flush=True)  # noqa: T201
        lacking = sorted(field_names(protocol).difference(reached))
        print(  # noqa: T201
            f"{protocol}: {forged:,} forged messages, {refused:,} refused, {len(reached)} fields,"
            f" not {', '.join(lacking) or 'one more'}; {ended} runs ended early;"
            f" {places.total()} cores failed",
            flush=True,
        )
        for place, count in places.most_common():
            print(f"  {count} {place}", flush=True)  # noqa: T201
        failed = failed or bool(places)
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
