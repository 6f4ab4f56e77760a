"""A fake broker for one consumer that keeps the consumer's committed position.

Paper: [DS03] §5.2.
"""

from dataclasses import dataclass, field
from typing import Any

from brokerd.model.client_messages import (
    CommitConsumed,
    Connect,
    Connected,
    Consume,
    ConsumedCommitted,
    Consuming,
    Refused,
    Subscribed,
)
from tests.helpers.keeping_broker import PUBEND, STEP, KeepingBroker


@dataclass
class ConsumingBroker(KeepingBroker):
    """A KeepingBroker that commits events by request only.

    Attributes:
        token: the committed position.
        answers: whether commits are answered.
        requests: numbers of all requests received.
        refuses: the reason for refusing to keep tokens; "" if the broker keeps tokens.
    """

    token: int = 0
    answers: bool = True
    requests: list[int] = field(default_factory=list)
    refuses: str = ""
    _given: int = 0

    async def _take(self, message: Any) -> None:
        match message:
            case Connect():
                had = dict(dict(message.resume).get(1, ())).get(PUBEND, 0)
                self._sent = max(had, self.token) // STEP
                await self._say(Connected(None, 1))
            case Consume() if self.refuses:
                await self._say(Refused("subscribe", 1, self.refuses, False))
            case Consume(number, _, uncommitted):
                given = ((PUBEND, self._given),) if self._given > self.token else ()
                await self._say(Consuming(number, 1, uncommitted, given))
                await self._say(Subscribed(number, "started", ((PUBEND, self._sent * STEP),)))
                self._subscribed = True
                await self._give()
            case CommitConsumed(number, request, positions):
                self.requests.append(request)
                self.token = max(self.token, dict(positions).get(PUBEND, 0))
                if self.answers:
                    await self._say(ConsumedCommitted(number, request))
            case _:
                await super()._take(message)

    async def _give(self) -> None:
        await super()._give()
        self._given = max(self._given, self._sent * STEP)
