"""A cluster without a clock, driven by named actions, with every check on every step.

An action consists of plain values, for example ("crash", 3, 1). So a list of actions is a history
that can be replayed, also with some actions left out. Brokers are numbers, clients are names:

    LANE                       the head of a lane happens, as in ("3>1",): see below
    hold LANE, release LANE    lanes of this name are held until the release
    time out A B               A abandons its attempt although B may answer
    suspect A B                A suspects B, with reason or without
    deadline B                 B's own clock shows its earliest deadline
    wait all                   all clocks advance until the first broker has a deadline
    crash B KEPT, restart B    at most KEPT of B's unconfirmed writes are durable
    fail B                     as crash, and messages in flight from B are lost
    cut A B, heal A B          from A to B nothing passes, and messages in flight are lost
    stale N                    the Nth last message that was too late is received after all
    publish P BLOB COUNT, subscribe S B PREDICATE, unsubscribe S NUMBER
    forget C                   a client's process restarts, and repeats all its requests

Lanes: `A>B` has the messages in flight on a session. `A:dials:B`, `A:gives-up:B` and `A:suspects:B`
have the outcome of an attempt or a silent session. `B:disk` and `B:log` have the writes of a
broker. `C:tries-again` and `C:takes` have the delayed actions of a client. Of several lanes with
one name, `#1` is the second.

Paper: [DFT11] §II (system model), §VIII.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import blake2b
from random import Random
from typing import Any, Final

from brokerd.config import SessionParameters
from brokerd.model.identity import BrokerNumber, ClientId, Peer
from brokerd.model.predicate import Predicate
from brokerd.model.predicate_text import parse_predicate
from brokerd.overlay.topology import Topology
from brokerd.protocols.interface import Effect, Event
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.clock import AdversarialSchedule
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.simulator.world.network import Network
from brokerd.simulator.world.sessions import NetworkParameters
from brokerd.units import SECOND_NS
from brokerd.wire.attributes import encode_attributes

Action = tuple[Any, ...]
"""A lane, or a verb with its targets."""

_REQUESTS: Final = ("publish", "subscribe", "restart", "crash", "suspect")
"""Verbs of actions that belong to their first target."""

_DISKS: Final = ("disk", "log")

KINDS = (True, 1, "1")
"""Values of different kinds that a language may treat as equal."""

BLOBS = tuple(encode_attributes({"kind": kind}) for kind in KINDS)
PREDICATE_TEXTS = ("true", "kind = true", "kind = 1", "kind in (1.0, '1')", "kind = '1'")
PREDICATES: tuple[Predicate, ...] = tuple(parse_predicate(text) for text in PREDICATE_TEXTS)

ENDLESS = 60_000
"""The number of actions after the healing of all faults that proves an endless run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The state of a simulation before the first action.

    Attributes:
        publishers: name and broker of each client that publishes.
        chance: the seed of all choices that no action decides.
        frame_limit_bytes: messages pass through the codec of the wire, in frames up to this size;
            0: without codec.
        payload_bytes: size of each payload, of which a few bytes distinguish the publications.
        is_certain: nothing is left to chance: a close loses no message, no message of a closed
            session is kept, and no wall clock steps.
        strict: raise an error for a broken promise; otherwise broken promises are counted.
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
    is_certain: bool = False


class ActedCluster:
    """The cluster of one scene, with the performed actions.

    Attributes:
        actions: the actions performed so far.
        crashes_before_persisted: crashes of brokers with writes that were not durable.
    """

    def __init__(
        self, scene: Scene, *, trace: bool = False, make_network: type[Network] = Network
    ) -> None:
        self.scene = scene
        self.actions: list[Action] = []
        self.crashes_before_persisted = 0
        self._effects: list[int] = []
        self.cluster = cluster = SimulatedCluster(
            scene.topology,
            scene.protocol,
            seed=scene.chance,
            parameters=scene.parameters,
            network=_network_of(scene),
            strict=scene.strict,
            trace=trace,
            adversarial=True,
            own_clocks=True,
            watcher=self._count,
            make_network=make_network,
        )
        cluster.factory.wall_clocks.are_steady = scene.is_certain
        assert isinstance(cluster.schedule, AdversarialSchedule)
        self.schedule = cluster.schedule
        self.brokers = cluster.brokers
        self.clients = cluster.clients
        self.oracle = cluster.oracle
        self.network = cluster.network
        self.link_faults = cluster.link_faults
        self._verbs: dict[str, Callable[..., bool]] = {
            "hold": self.schedule.hold,
            "release": self.schedule.release,
            "time out": self._time_out,
            "suspect": self._suspect,
            "deadline": self._reach_deadline,
            "wait": self._wait,
            "crash": self._crash,
            "fail": self._fail,
            "restart": self._restart,
            "cut": self._cut,
            "heal": self._heal,
            "stale": self._hand_over_old,
            "publish": self._publish,
            "subscribe": self._subscribe,
            "unsubscribe": self._unsubscribe,
            "forget": self._forget,
        }

    def start(self, pure: BrokerNumber | None = None) -> None:
        """Start brokers and publishers; keep the history of the broker `pure`, if given."""
        if pure is not None:
            self.brokers[pure].history = []
        self.cluster.start()
        for name, number in self.scene.publishers:
            self.cluster.client(name, self.brokers[number].name, publishes=True)

    def perform(self, action: Action) -> bool:
        """Perform an action; return False, without an effect, if the action is impossible now."""
        self._begin(action)
        verb = self._verbs.get(action[0], self.schedule.take)
        if verb(*(action if len(action) == 1 else action[1:])):
            return True
        self.actions.pop()
        return False

    def happen(self) -> bool:
        """Take the head of any lane; return False if no lane has a head."""
        lane = self.schedule.draw()
        if lane is None:
            return False
        self._begin((self.schedule.name_of(lane),))
        self.schedule.take_head(lane)
        return True

    def take(self, lane: str) -> bool:
        """Take the head of a lane by its name among `ready_lanes`; return False without one."""
        found = self.schedule.ready_lanes().get(lane)
        if found is None:
            return False
        self._begin((lane,))
        self.schedule.take_head(found)
        return True

    def forget_actions(self) -> None:
        """Forget all actions and their outcome, so that the history of a world does not grow."""
        self.actions.clear()
        self._effects.clear()

    def _begin(self, action: Action) -> None:
        """Record an action in advance, so that the history of a broken rule contains the action."""
        self.actions.append(action)
        if self.cluster.trace is not None:
            self.schedule.now_ns = len(self.actions) * SECOND_NS  # instants are numbers of actions
            self.cluster.state.note(describe_action(action))

    # ------------------------------------------------------------ end

    def heal_all(self) -> None:
        """Release all lanes, heal all cuts and restart all dead brokers."""
        for lane in list(self.schedule.held):
            self.perform(("release", lane))
        for way in self.link_faults.cut_directions():
            self.perform(("heal", *way))
        for broker in self.brokers:
            if not broker.alive:
                self.perform(("restart", broker.number))

    def settle(self, random: Random) -> None:
        """Perform all possible events, in any order, until every owed delivery has arrived.

        Raises:
            InvariantViolated: the run does not end; lists the remaining work.
        """
        self.schedule.draw_anew(random)
        most = len(self.actions) + ENDLESS
        while True:
            while len(self.actions) <= most and self.happen():
                pass
            if self.has_converged():
                return
            waiting = [broker for broker in self.brokers if broker.deadline() is not None]
            if not waiting or len(self.actions) > most:
                break
            self.perform(("deadline", random.choice(waiting).number))
        left = [
            *self.cluster.waits.describe_unsettled(),
            *self._list_rest(),
            *self.oracle.gates.describe_closed(),
        ]
        rule = "liveness" if left else "incomplete"  # without a holder it is lost
        left += self.oracle.obligations.describe_undelivered()
        why = "no end" if len(self.actions) > most else "nothing left to happen"
        raise InvariantViolated(rule, f"{why}: {'; '.join(left[:12])}")

    def has_converged(self) -> bool:
        """Return True if all owed deliveries have arrived, and brokers hold no excess."""
        if not self.scene.strict:
            return not self.cluster.waits.describe_unsettled()
        if self.oracle.obligations.describe_undelivered() or self.oracle.gates.describe_closed():
            return False
        return not self.cluster.waits.describe_unsettled() and not self._list_rest()

    def _list_rest(self) -> list[str]:
        checker = self.cluster.checker
        return checker.list_rest(self.brokers) + checker.own.list_rest(self.brokers)

    # ------------------------------------------------------------ digest

    def digest(self) -> str:
        """Return 32 hex digits over all actions and their outcome."""
        hashed = blake2b(digest_size=16)
        hashed.update(repr((self.actions, self._effects)).encode())
        for broker in self.brokers:
            hashed.update(repr(broker.disk.contents()).encode())
        for client in self.clients.values():
            hashed.update(repr((client.name, client.received)).encode())
        return hashed.hexdigest()

    def _count(self, broker: Any, event: Event, effects: list[Effect]) -> None:
        self._effects.append(len(effects))

    # ------------------------------------------------------------ verbs

    def _time_out(self, owner: Peer, peer: Peer) -> bool:
        return self.network.time_out(self.network.endpoints[owner], peer)

    def _suspect(self, owner: Peer, peer: Peer) -> bool:
        end = self.network.endpoints[owner].ends.get(peer)
        if end is None:
            return False
        self.network.suspect(end)
        return True

    def _reach_deadline(self, number: BrokerNumber) -> bool:
        return self.brokers[number].reach_deadline()

    def _wait(self, _which: str) -> bool:
        waits = [
            (max(0, due_ns - broker.clock_ns), broker.number)
            for broker in self.brokers
            if (due_ns := broker.deadline()) is not None
        ]
        if not waits:
            return False
        wait_ns, first = min(waits)
        for broker in self.brokers:
            broker.set_clock(broker.clock_ns + wait_ns)
        return self.brokers[first].reach_deadline()

    def _crash(self, number: BrokerNumber, kept: int) -> bool:
        broker = self.brokers[number]
        if not broker.alive:
            return False
        self.crashes_before_persisted += broker.disk.has_unwritten
        broker.kill(kept)
        return True

    def _fail(self, number: BrokerNumber) -> bool:
        broker = self.brokers[number]
        peers = [*broker.ends]
        for peer in peers:
            self.link_faults.cut(number, peer, "out")
        is_done = self._crash(number, 0)
        for peer in peers:
            self.link_faults.heal(number, peer, "out")
        return is_done

    def _restart(self, number: BrokerNumber) -> bool:
        broker = self.brokers[number]
        if broker.alive:
            return False
        broker.start()
        return True

    def _cut(self, sender: Peer, receiver: Peer) -> bool:
        if (sender, receiver) in self.link_faults.cut_directions():
            return False
        self.link_faults.cut(sender, receiver, "out")
        return True

    def _heal(self, sender: Peer, receiver: Peer) -> bool:
        if (sender, receiver) not in self.link_faults.cut_directions():
            return False
        self.link_faults.heal(sender, receiver, "out")
        return True

    def _hand_over_old(self, age: int) -> bool:
        old = self.network.transmission.old_messages
        if age >= len(old):
            return False
        message = old.pop(len(old) - 1 - age)
        key = message.endpoint.key
        return isinstance(key, int) and self.brokers[key].receive_old(message)

    def _publish(self, name: ClientId, blob: int, count: int) -> bool:
        payload = len(self.actions).to_bytes(self.scene.payload_bytes)
        home = self.brokers[self.clients[name].broker].name
        self.cluster.publish_run(home, [(BLOBS[blob], payload)] * count, name)
        return True

    def _subscribe(self, name: ClientId, number: BrokerNumber, predicate: int) -> bool:
        self.cluster.subscribe(self.brokers[number].name, PREDICATES[predicate], name)
        return True

    def _unsubscribe(self, name: ClientId, number: int) -> bool:
        client = self.clients.get(name)
        if client is None or number not in client.core.subscriptions:
            return False
        self.cluster.unsubscribe(name, number)
        return True

    def _forget(self, name: ClientId) -> bool:
        if name not in self.clients:
            return False
        self.cluster.population.forget(name)
        return True


def _network_of(scene: Scene) -> NetworkParameters:
    """Return parameters without durations, so that chance decides only the losses of closes."""
    session = SessionParameters()
    if scene.frame_limit_bytes:
        session = replace(session, frame_limit_bytes=scene.frame_limit_bytes)
    return NetworkParameters(
        latency_lowest_ns=0,
        latency_highest_ns=0,
        jitter_ns=0,
        early_timeouts=False,
        lost_on_close=not scene.is_certain,
        keep_old_messages=not scene.is_certain,
        encode=bool(scene.frame_limit_bytes),
        session=session,
    )


def describe_action(action: Action) -> str:
    """Return an action on one line."""
    return " ".join(map(str, action))


def is_lane(action: Action) -> bool:
    """Return True if an action takes the head of a lane."""
    return len(action) == 1


def peer_of(word: str) -> Peer:
    """Return the broker or client of a word in the name of a lane."""
    return int(word) if word.isdigit() else word


def processes_of(action: Action) -> tuple[Peer, ...]:
    """Return the processes of an action; none for an action that may concern all of them."""
    if not is_lane(action):
        return (action[1],) if action[0] in _REQUESTS else ()
    name = action[0].partition("#")[0]
    if ">" in name:
        return (peer_of(name.partition(">")[2]),)
    owner, _, rest = name.partition(":")
    kind, _, peer = rest.partition(":")
    return (peer_of(owner), peer_of(peer)) if kind == "dials" else (peer_of(owner),)


def is_local(lane: str) -> bool:
    """Return True for a lane of a disk, and for a lane to, from or of a client."""
    name = lane.partition("#")[0]
    sender, _, receiver = name.partition(">")
    if receiver:
        return not (sender.isdigit() and receiver.isdigit())
    owner, _, rest = name.partition(":")
    return not owner.isdigit() or rest in _DISKS
