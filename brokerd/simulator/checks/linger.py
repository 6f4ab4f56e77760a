"""Subscriptions that a broker ends because their client was disconnected for `client_linger_ns`.

The broker may end these subscriptions no earlier. Afterwards the oracle expects nothing of them
until the client subscribes again.

Paper: none; no paper covers disconnected clients.
"""

from collections.abc import Sequence

from brokerd.model.client_messages import Connect, Detach, Subscribe
from brokerd.model.identity import BrokerNumber, ClientId
from brokerd.protocols.interface import (
    Commit,
    DeadlineReached,
    Effect,
    Event,
    Instant,
    MessageReceived,
    SessionEstablished,
    SessionLost,
    Started,
)
from brokerd.simulator.checks.oracle import Oracle
from brokerd.simulator.checks.protocol_checks import message_of
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.clock import Schedule
from brokerd.simulator.world.views import BrokerView


class LingerChecker:
    """A check of the subscriptions that brokers end without a request.

    A broker may end a subscription if its client has had no session for `linger_ns`, or a session
    on which the client has not requested the subscription, or has requested to leave. The time
    restarts when a session begins or ends, and when the broker starts.

    Args:
        subscriptions: the table with a row of each subscription, "CLIENT/NUMBER".
        publishers: the table of publishers, with rows that end with disconnected publishers; empty
            without such a table.

    Attributes:
        ended: the subscriptions that the last step ended of clients at other brokers.
    """

    def __init__(
        self,
        schedule: Schedule,
        oracle: Oracle,
        linger_ns: int,
        subscriptions: str,
        publishers: str = "",
    ) -> None:
        self._schedule = schedule
        self._oracle = oracle
        self._linger_ns = linger_ns
        self._subscriptions = subscriptions
        self._publishers = publishers
        self._started: dict[BrokerNumber, Instant] = {}
        self._since: dict[tuple[BrokerNumber, ClientId], Instant] = {}
        self._requests: dict[tuple[BrokerNumber, ClientId], dict[int, None]] = {}
        self._leaving: dict[tuple[BrokerNumber, ClientId], None] = {}
        self._with_memory: dict[tuple[BrokerNumber, int, ClientId], None] = {}
        self.ended: list[tuple[ClientId, int]] = []

    def step(
        self, broker: BrokerView, event: Event, effects: Sequence[Effect]
    ) -> Sequence[tuple[ClientId, int]]:
        """Return the subscriptions that a broker has ended in a step."""
        number, now_ns = broker.number, self._schedule.now_ns
        self.ended = []
        if type(event) is MessageReceived:
            if type(event.message) is Subscribe:
                requests = self._requests.setdefault((number, str(event.peer)), {})
                requests[event.message.number] = None
            elif type(event.message) is Detach:
                self._leaving[number, str(event.peer)] = None
            elif type(message_of(broker, event)) is Connect and event.message.resume:
                self._with_memory[number, broker.incarnation, str(event.peer)] = None
        elif type(event) is SessionEstablished or type(event) is SessionLost:
            if isinstance(event.peer, str):
                self._since[number, event.peer] = now_ns
                self._requests[number, event.peer] = {}
                self._leaving.pop((number, event.peer), None)
        elif type(event) is DeadlineReached:
            return self._check_commits(broker, effects)
        elif type(event) is Started:
            self._started[number] = now_ns
        return ()

    def is_undecided(self, broker: BrokerView, client: ClientId, *, claimed: int) -> bool:
        """Return True if a client has not requested a subscription, and may have no memory.

        Args:
            claimed: the session on which the client has requested the subscription, or 0.
        """
        return not claimed and (broker.number, broker.incarnation, client) not in self._with_memory

    def _check_commits(
        self, broker: BrokerView, effects: Sequence[Effect]
    ) -> list[tuple[ClientId, int]]:
        given_up: list[tuple[ClientId, int]] = []
        for effect in effects:
            for change in effect.changes if type(effect) is Commit else ():
                if change.value is not None:
                    continue
                if change.table == self._subscriptions:
                    client, _, number = change.key.rpartition("/")
                    if (broker.number, client) in self._leaving:
                        continue
                    self._check(broker, client, int(number))
                    if self._oracle.homes.get(client) != broker.number:
                        self.ended.append((client, int(number)))
                        continue
                    self._oracle.lives.expire(client, int(number))
                    given_up.append((client, int(number)))
                elif self._publishers and change.table == self._publishers:
                    self._oracle.publishers.give_up(change.key)
        return given_up

    def _check(self, broker: BrokerView, client: ClientId, number: int) -> None:
        key = broker.number, client
        since_ns = max(self._since.get(key, 0), self._started[broker.number])
        waited_ns = self._schedule.now_ns - since_ns
        if number in self._requests.get(key, {}) and client in broker.ends:
            raise InvariantViolated(
                "expired early", f"{broker.name} ends {client}/{number}, which it has asked for"
            )
        if waited_ns < self._linger_ns:
            raise InvariantViolated(
                "expired early", f"{broker.name} ends {client}/{number} after {waited_ns} ns"
            )
