"""A whole cluster without time, moved by named actions, with every check on every step.

The actions, and what they are done to (brokers are numbers, clients are names):

    deliver SENDER RECEIVER     the first message under way on their session arrives
    connect A B, give up A B    A's attempt to open a session is decided; nobody answers it
    time out A B                A gives up although somebody may answer
    notice A B, suspect A B     A takes B for dead, with reason or without
    persist B, log B            B's first waiting transaction, or publication, is durable,
                                and B is told so
    deadline B                  B's earliest deadline has come
    crash B KEPT, restart B     KEPT transactions that B had not been told of are durable
    cut A B, heal A B           from A to B nothing passes, and what was under way is lost
    hold …, release …           of another action nothing happens meanwhile
    stale N                     the Nth message that came too late comes nevertheless
    publish P BLOB COUNT, subscribe S B PREDICATE, unsubscribe S NUMBER
    forget C                    a client's process begins anew, and asks for all that it ever asked
    dial C, take C, ask again C a client's next session, acknowledgement, repeated request

Paper: [DFT11] §II, §VIII.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from typing import Any

from brokerd.config import SECOND_NS
from brokerd.model.identity import BrokerNumber, ClientId
from brokerd.model.predicate import Predicate
from brokerd.model.predicate_text import parse_predicate
from brokerd.overlay.topology import Topology
from brokerd.overlay.tree import graph_of
from brokerd.protocols.definition import Acknowledgement
from brokerd.protocols.interface import DeliveryProtocol, Effect, Event
from brokerd.protocols.registry import definition_of, make_protocol
from brokerd.simulator.checks.invariants import StepChecker
from brokerd.simulator.checks.oracle import InvariantViolated, Oracle
from brokerd.simulator.checks.protocol_checks import (
    CheckedWorld,
    make_checks,
    make_observer,
    with_bugs,
)
from brokerd.simulator.world.clock import Schedule
from brokerd.simulator.world.trace import Trace
from brokerd.simulator.world.untimed import Action, Lane, UntimedNetwork
from brokerd.simulator.world.untimed_broker import UntimedBroker
from brokerd.simulator.world.untimed_clients import UntimedClient
from brokerd.simulator.world.wall_clock import WallClocks
from brokerd.wire.attributes import decode_attributes, encode_attributes

KINDS = ("a", "b", "c")
BLOBS = tuple(encode_attributes({"kind": kind}) for kind in KINDS)
PREDICATE_TEXTS = ("true", "kind = 'a'", "kind = 'b'", "kind in ('b', 'c')", "kind = 'c'")
PREDICATES: tuple[Predicate, ...] = tuple(parse_predicate(text) for text in PREDICATE_TEXTS)

ENDLESS = 60_000
"""So many actions after all was healed mean that it will never end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What there is before anything happens.

    Attributes:
        publishers: name and broker of each client that publishes.
        chance: the seed of what no action decides.
        frame_limit_bytes: messages go through the wire's codec, in frames no larger; 0: they
            do not.
        payload_bytes: of each publication, of which a few tell it from others.
        strict: raise what is not as promised; without it is counted.
    """

    protocol: str
    topology: Topology
    parameters: Any
    publishers: tuple[tuple[ClientId, BrokerNumber], ...]
    chance: int
    mutants: frozenset[str] = frozenset()
    strict: bool = True
    frame_limit_bytes: int = 0
    payload_bytes: int = 3


class UntimedCluster:
    """Brokers and clients of one scene.

    Attributes:
        actions: what has happened so far.
        crashes_before_persisted: crashes of brokers that waited to hear of something durable.
        trace: the last steps in words, where asked for.
    """

    def __init__(
        self,
        scene: Scene,
        *,
        trace: bool = False,
        make_network: Callable[[Random], UntimedNetwork] = UntimedNetwork,
    ) -> None:
        self.scene = scene
        self.graph = graph_of(scene.topology, definition_of(scene.protocol).kind)
        self.actions: list[Action] = []
        self.oracle = Oracle(
            decode_attributes, scene.strict, definition_of(scene.protocol).promises
        )
        logs = definition_of(scene.protocol).logs(scene.parameters)
        acknowledgement = definition_of(scene.protocol).acknowledgement(scene.parameters)
        self.oracle.logged = acknowledgement is Acknowledgement.STORED
        clocks = WallClocks(scene.chance)
        self.trace = Trace() if trace else None
        self.network = make_network(Random(scene.chance))
        self.network.frame_limit_bytes = scene.frame_limit_bytes
        self._steps = Schedule()
        self.checker = StepChecker(
            self._steps,
            self.graph,
            self.oracle,
            self.trace,
            scene.strict,
            None,
            make_checks(
                scene.protocol,
                CheckedWorld(
                    schedule=self._steps,
                    graph=self.graph,
                    oracle=self.oracle,
                    parameters=scene.parameters,
                    brokers=lambda: self.brokers,
                    has_publishers=self._has_publishers,
                    strict=scene.strict,
                ),
            ),
            make_observer(scene.protocol, self.graph),
        )
        self.crashes_before_persisted = 0
        self._publishing: dict[BrokerNumber, None] = {}
        self.clients: dict[ClientId, UntimedClient] = {}
        self._asked: dict[ClientId, list[Predicate]] = {}
        self.brokers = [
            UntimedBroker(number, name, self.network, self.make_core, self._observe, logs, clocks)
            for number, name in enumerate(scene.topology.brokers)
        ]
        for broker in self.brokers:
            self.network.endpoints[broker.number] = broker
        for name, number in scene.publishers:
            self._publishing[number] = None
            self._client(name, number, publishes=True)
        self._verbs: dict[str, Callable[..., bool]] = {
            "time out": self.network.give_up,
            "suspect": self.network.suspect,
            "deadline": self._fire,
            "crash": self._crash,
            "restart": self._restart,
            "cut": self.network.cut_direction,
            "heal": self.network.heal_direction,
            "hold": self._hold,
            "release": self._release,
            "stale": self._hand_over_old,
            "publish": self._publish,
            "subscribe": self._subscribe,
            "unsubscribe": self._unsubscribe,
            "forget": self._forget,
        }

    def start(self, pure: BrokerNumber | None = None) -> None:
        """Start all brokers; keep the history of one of them where asked to."""
        if pure is not None:
            self.brokers[pure].history = []
        for broker in self.brokers:
            broker.start()

    def perform(self, action: Action) -> bool:
        """Let this happen; False, and nothing has, where it cannot happen now."""
        verb = self._verbs.get(action[0])
        if verb is not None:
            self._note(action)
            if not verb(*action[1:]):
                return False
            self.actions.append(action)
            return True
        lane = self.network.lanes.get(action)
        if lane is None or lane.held or not lane.queue:
            return False
        self.happen(lane)
        return True

    def happen(self, lane: Lane) -> None:
        """Let the first item of a lane happen; there must be one, and nobody may hold it."""
        if self.trace is not None:
            self._note(lane.action)
        self.actions.append(lane.action)
        lane.happen()

    # ------------------------------------------------------------ the end

    def heal_all(self) -> None:
        """Nothing is held, cut or dead any more."""
        for action, lane in list(self.network.lanes.items()):
            if lane.held:
                self.perform(("release", *action))
        for direction in list(self.network.cut):
            self.perform(("heal", *direction))
        for broker in self.brokers:
            if not broker.alive:
                self.perform(("restart", broker.number))

    def settle(self, random: Random) -> None:
        """Let happen whatever can, in any order, until everything owed has arrived.

        Raises:
            InvariantViolated: it never ends; says what is left.
        """
        ready, actions = self.network.ready, self.actions
        most = len(actions) + ENDLESS
        while True:
            while ready:
                self.happen(ready[int(random.random() * len(ready))])
                if len(actions) > most:
                    break
            if self.has_converged():
                return
            waiting = [broker for broker in self.brokers if broker.deadline() is not None]
            if not waiting or len(actions) > most:
                break
            self.perform(("deadline", random.choice(waiting).number))
        left = [*self.unsettled(), *self._left_over(), *self.oracle.closed_gates()]
        rule = "liveness" if left else "incomplete"  # what nobody holds any more is lost
        left += self.oracle.undelivered()
        why = "no end" if len(actions) > most else "nothing left to happen"
        raise InvariantViolated(rule, f"{why}: {'; '.join(left[:12])}")

    def has_converged(self) -> bool:
        """Whether everything owed has arrived, and no broker holds more than it has to."""
        if not self.scene.strict:
            return not self.unsettled()
        oracle = self.oracle
        if oracle.undelivered() or oracle.closed_gates():
            return False
        return not self.unsettled() and not self._left_over()

    def unsettled(self) -> list[str]:
        """Who waits for a session or an answer that can be had, in words."""
        lines = [f"{name} is not settled" for name, c in self.clients.items() if not c.settled]
        for broker in self.brokers:
            if broker.attempts:
                lines.append(f"{broker.name} dials {list(broker.attempts)}")
            status = broker.core.status()
            reachable = [
                peer for peer in status.missing if self.network.is_open(broker.number, peer)
            ]
            if reachable:
                lines.append(f"{broker.name} waits for sessions with {reachable}")
        return lines

    def _left_over(self) -> list[str]:
        return self.checker.left_over(self.brokers) + self.checker.own.left_over(self.brokers)

    # ------------------------------------------------------------ what it was

    def digest(self) -> str:
        """32 hex digits over everything that happened and what came of it."""
        hashed = blake2b(digest_size=16)
        hashed.update(repr(self.actions).encode())
        for broker in self.brokers:
            hashed.update(repr((broker.effects_by_event, broker.disk.logs.contents())).encode())
            hashed.update(repr(broker.disk.recovered()).encode())
        for client in self.clients.values():
            hashed.update(repr((client.name, client.received)).encode())
        return hashed.hexdigest()

    def statistics(self) -> dict[str, int]:
        """The sum of all live brokers' counters."""
        total: dict[str, int] = {}
        for broker in self.brokers:
            if broker.alive:
                for name, value in broker.core.statistics().items():
                    total[name] = total.get(name, 0) + value
        return total

    def repeat_events(self, number: BrokerNumber) -> None:
        """I17: the same events give a fresh core the same effects.

        Raises:
            InvariantViolated: they do not.
        """
        broker = self.brokers[number]
        core = self.make_core(number)
        for event, now_ns, effects in broker.history or ():
            again = core.handle(event, now_ns)
            if again != effects:
                raise InvariantViolated(
                    "purity", f"{broker.name} on {event}: first {effects}, then {again}"
                )

    # ------------------------------------------------------------ the verbs

    def _fire(self, number: BrokerNumber) -> bool:
        return self.brokers[number].fire()

    def _crash(self, number: BrokerNumber, kept: int) -> bool:
        broker = self.brokers[number]
        if not broker.alive:
            return False
        self.crashes_before_persisted += broker.disk.waits
        broker.crash(kept)
        return True

    def _restart(self, number: BrokerNumber) -> bool:
        broker = self.brokers[number]
        if broker.alive:
            return False
        broker.start()
        return True

    def _hold(self, *action: str | int) -> bool:
        lane = self.network.lanes.get(action)
        if lane is None or lane.held:
            return False
        lane.hold()
        return True

    def _release(self, *action: str | int) -> bool:
        lane = self.network.lanes.get(action)
        if lane is None or not lane.held:
            return False
        lane.release()
        return True

    def _hand_over_old(self, place: int) -> bool:
        old = self.network.old_messages
        if place >= len(old):
            return False
        endpoint, incarnation, peer, session, message = old[place]
        del old[place]
        return isinstance(endpoint, UntimedBroker) and endpoint.receive_old(
            incarnation, peer, session, message
        )

    def _publish(self, name: ClientId, blob: int, count: int) -> bool:
        client = self.clients[name]
        payload = len(self.actions).to_bytes(self.scene.payload_bytes)
        first = client.publish(BLOBS[blob], payload, count)
        for sequence in range(first, first + count):
            self.oracle.published(name, sequence, BLOBS[blob], payload)
        return True

    def _subscribe(self, name: ClientId, number: BrokerNumber, predicate: int) -> bool:
        client = self._client(name, number, publishes=False)
        wanted = PREDICATES[predicate]
        self._asked.setdefault(name, []).append(wanted)
        self.oracle.subscribed(name, client.subscribe(wanted), wanted)
        return True

    def _unsubscribe(self, name: ClientId, number: int) -> bool:
        client = self.clients.get(name)
        if client is None or number not in client.core.subscriptions:
            return False
        self.oracle.unsubscribed(name, number)
        client.unsubscribe(number)
        return True

    def _forget(self, name: ClientId) -> bool:
        client = self.clients.get(name)
        if client is None:
            return False
        self.oracle.forgot(name)
        client.forget()
        for wanted in self._asked.get(name, ()):
            self.oracle.subscribed(name, client.subscribe(wanted), wanted)
        return True

    # ------------------------------------------------------------ inside

    def make_core(self, number: BrokerNumber) -> DeliveryProtocol:
        """A core like a broker's own."""
        scene = self.scene
        return make_protocol(
            scene.protocol,
            number,
            scene.topology,
            scene.parameters,
            decode_attributes,
        )

    def _client(self, name: ClientId, number: BrokerNumber, *, publishes: bool) -> UntimedClient:
        client = self.clients.get(name)
        if client is None:
            client = UntimedClient(name, number, self.network, self.oracle, publishes)
            self.clients[name] = client
            self.checker.client_added(name, number)
        assert client.broker == number, f"{name} is at {client.broker}, not at {number}"
        return client

    def _has_publishers(self, number: BrokerNumber) -> bool:
        return number in self._publishing

    def _observe(self, broker: UntimedBroker, event: Event, effects: list[Effect]) -> None:
        self.checker.driven(broker, event, effects)
        self.checker.step(broker, event, effects)
        if self.scene.strict:
            self.checker.own.look_into(broker, self.brokers)

    def _note(self, action: Action) -> None:
        if self.trace is not None:
            self._steps.now_ns = len(self.actions) * SECOND_NS  # instants are numbers of actions
            self.trace.note(self._steps.now_ns, in_words(action))


def in_words(action: Action) -> str:
    """An action on one line."""
    return " ".join(map(str, action))


def play(scene: Scene, actions: Iterable[Action], *, trace: bool = False) -> UntimedCluster:
    """Play actions again, passing over what cannot happen; nothing is healed or judged."""
    with with_bugs(scene.mutants):
        cluster = UntimedCluster(scene, trace=trace)
        cluster.start()
        for action in actions:
            cluster.perform(action)
    return cluster
