"""Checks of the beginning of each pubend in total order, against earlier deliveries.

Paper: [GD02] §2.3 (total order).
"""

from collections.abc import Iterable, Sequence

from brokerd.model.client_messages import Deliveries
from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.protocols.gryphon.definition import LOG
from brokerd.protocols.gryphon.messages import Joined
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.pubend import unpack_logged
from brokerd.protocols.gryphon.routes import hosts_clients
from brokerd.protocols.gryphon.state import MERGED
from brokerd.protocols.interface import (
    Append,
    Commit,
    Deliver,
    Effect,
    Event,
    Persisted,
    Send,
    Started,
)
from brokerd.simulator.checks.protocol_checks import CheckedWorld, ProtocolChecks
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.views import BrokerView


class JoinChecks(ProtocolChecks):
    """See ProtocolChecks; the names of rules stand in the protocol's document.

    - joined early: a broker that announces that it waits for a pubend has that on disk (I12);
    - start unannounced: a pubend assigns ticks when all brokers with clients wait for it (I15);
    - start early: these ticks lie behind all earlier deliveries to their clients (I15).
    """

    def __init__(self, world: CheckedWorld) -> None:
        super().__init__(world)
        parameters: GryphonParameters = world.parameters
        self._is_on = parameters.is_total
        topology = world.graph.topology
        brokers = range(len(topology.brokers))
        self._hosts = [number for number in brokers if hosts_clients(topology, number)]
        pubends = range(parameters.pubends)
        self._pubends = [f"{host}.{pubend}" for host in self._hosts for pubend in pubends]
        self._delivered = dict.fromkeys(self._hosts, 0)
        self._writing: dict[tuple[BrokerNumber, int, int], list[str]] = {}
        self._before: dict[tuple[BrokerNumber, str], int] = {}
        """Per broker and awaited pubend: the last delivered tick at the start of the wait."""
        self._begun: dict[StreamId, None] = {}

    def step(
        self, broker: BrokerView, event: Event, effects: list[Effect]
    ) -> Sequence[tuple[str, int]]:
        if not self._is_on:
            return ()
        if type(event) is Started:
            self._writing = {k: v for k, v in self._writing.items() if k[0] != broker.number}
            self._note(broker, event.recovered.get(MERGED, {}))
            if event.lineage and broker.number in self._delivered:  # it waits for all pubends
                self._note(broker, self._pubends)
        elif type(event) is Persisted:
            key = broker.number, broker.incarnation, event.token
            self._note(broker, self._writing.pop(key, ()))
        for effect in effects:
            self._look_at(broker, effect)
        return ()

    def _note(self, broker: BrokerView, pubends: Iterable[str]) -> None:
        for pubend in pubends:
            self._before.setdefault((broker.number, pubend), self._delivered[broker.number])

    def _look_at(self, broker: BrokerView, effect: Effect) -> None:
        if type(effect) is Commit and effect.token is not None:
            rows = [change.key for change in effect.changes if change.table == MERGED]
            if rows:
                self._writing[broker.number, broker.incarnation, effect.token] = rows
        elif type(effect) is Deliver and isinstance(effect.item, Deliveries):
            last = max(effect.item.run.last, self._delivered[broker.number])
            self._delivered[broker.number] = last
        elif type(effect) is Append and effect.log == LOG:
            for parts in effect.records:
                pubend, first, _ = unpack_logged(b"".join(map(bytes, parts)))
                self._check_first(broker, StreamId(broker.number, pubend, 0), first)
        elif type(effect) is Send and type(effect.message) is Joined:
            self._check_answer(broker, effect.message)

    def _check_first(self, broker: BrokerView, stream: StreamId, first: int) -> None:
        """Check the tick of the first event of a pubend."""
        subject = f"{broker.name}, {tuple(stream)}: {first}"
        for host in self._hosts if stream not in self._begun else ():
            before = self._before.get((host, _key(stream)))
            if before is None:
                raise InvariantViolated(
                    "start unannounced", f"{subject}, {host} does not wait for it"
                )
            if before >= first:
                raise InvariantViolated("start early", f"{subject}, {host} has handed out {before}")
        self._begun[stream] = None

    def _check_answer(self, broker: BrokerView, answer: Joined) -> None:
        is_own = answer.broker == broker.number
        if is_own and (broker.number, _key(answer.stream)) not in self._before:
            raise InvariantViolated("joined early", f"{broker.name}: {answer}")


def _key(stream: StreamId) -> str:
    return f"{stream.broker}.{stream.publisher}"
