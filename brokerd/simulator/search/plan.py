"""Plans: all decisions of a swarm's seed, as a value that can be read, shrunk and replayed.

As text a plan is its own story. Lines that begin with `#` are for people:

    simulation timed                     or `adversarial`, where instants are steps
    protocol NAME delta=1 [M21]          and the named bugs of every broker
    brokers b2 b1 b3                     in the order of their numbers
    links b1-b2 b2-b3
    overlay cells {"bundles": …}         in place of links and delta, for other kinds than trees
    limits failed=1 links=3              at once, and at once while only links are failed
    network latency_highest_ns=60000000  differences from defaults; also `session`, `core`
    chance 4711 [only]                   the seed of all choices outside of the lines; `only`: no
                                         step of an adversary is drawn, all steps are listed
    publisher p0-b1                      a client at b1
    lowered MODULE.LIMIT=3               a constant of the code with another value
    consumer c1-b1 3                     a consumer that commits after 3 publications at most
    at 0.2 publish p0-b1 a,10,3 b,40,0   two publications in one run: kind, price, payload bytes;
                                         a kind other than letters is in JSON: true, 1, "1"
    at 0.25 subscribe s1-b3 kind = 'a'
    at 0.28 unsubscribe s1-b3 1          the client's first subscription
    at 0.29 detach s1-b3                 the client detaches for good
    at 0.29 forget s2-b3 1               the process restarts without memory, and repeats the
                                         request for its first subscription only
    at 0.3 move s1-b3 b1                 the client moves to another broker, in the plan as s1-b3
    at 0.3 join n1 b3                    a new broker, a leaf behind b3
    at 0.4 depart n1                     the broker departs; no effect with clients
    at 0.3 fault kill b2 then 0.41       the further stages, if before healing
    at 0.3 fault restored b2 copy then 0.5 0.6
                                         the present disk is restored (`empty`: an empty disk); a
                                         proved loss is accepted, or refused if it must be
    at 17 take b1>b2                     an adversary's choice
    heal 4.5
    broken cut_one_way b1 b2             from healing on
    end 6
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

from brokerd.config import SessionParameters, typed_value
from brokerd.errors import ConfigError
from brokerd.model.predicate import Scalar
from brokerd.overlay.topology import SCHEMA, TREE, Topology, nearest
from brokerd.protocols.definition import Parameters
from brokerd.protocols.registry import DEFINITIONS, definition_of
from brokerd.simulator.checks.limits import check_limit
from brokerd.simulator.checks.protocol_checks import limits_of, named_bug, planning_of
from brokerd.simulator.world.network import NetworkParameters
from brokerd.units import SECOND_NS

LAYERS = ("timed", "adversarial")
_BOOLEANS = ("True", "False")
BROKEN_FOR_EVER = ("cut", "cut_one_way", "blackhole", "blackhole_one_way")


class PlanError(ConfigError):
    """A plan's text that cannot be read; names the line and the valid words; the user's fault."""


@dataclass(frozen=True, slots=True)
class Contents:
    """The content of one publication."""

    kind: Scalar
    price: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class Publishing:
    """The publishing of a run of publications by a client."""

    when: int
    client: str
    contents: tuple[Contents, ...]


@dataclass(frozen=True, slots=True)
class Subscribing:
    """The subscription of a client; a new client is created."""

    when: int
    client: str
    predicate: str


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a client's subscription; no effect without the subscription."""

    when: int
    client: str
    number: int


@dataclass(frozen=True, slots=True)
class Leaving:
    """The departure of a subscriber for good, with no state left at its broker; once."""

    when: int
    client: str


@dataclass(frozen=True, slots=True)
class Forgetting:
    """The loss of a client's process and memory; another process of the same name repeats requests.

    Attributes:
        keeps: number of requested subscriptions, from the first on, under their numbers.
    """

    when: int
    client: str
    keeps: int


@dataclass(frozen=True, slots=True)
class Moving:
    """The move of a client to another broker; no effect if there, leaving, or moving."""

    when: int
    client: str
    to: str


@dataclass(frozen=True, slots=True)
class Reattaching:
    """The attachment of a subscriber to another broker, for any state of its own broker.

    No effect if the client is there, publishes, or waits for an answer that only its own broker can
    give.
    """

    when: int
    client: str
    to: str


@dataclass(frozen=True, slots=True)
class Joining:
    """The join of a new broker: in a tree as a leaf, in a hierarchy with one or more links."""

    when: int
    broker: str
    at: str
    further: tuple[str, ...] = ()

    @property
    def near(self) -> tuple[str, ...]:
        """The neighbours of the new broker."""
        return (self.at, *self.further)


@dataclass(frozen=True, slots=True)
class Departing:
    """The departure of a joined broker; no effect if absent or with clients."""

    when: int
    broker: str


@dataclass(frozen=True, slots=True)
class Changing:
    """The change of a broker's role in the overlay; no effect if impossible."""

    when: int
    broker: str
    role: str


@dataclass(frozen=True, slots=True)
class Failing:
    """A fault: its first stage, and the instants of further stages; healing performs the rest.

    Attributes:
        on: arguments of the kind: brokers, a client, numbers.
    """

    when: int
    kind: str
    on: tuple[str, ...]
    stages: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Taking:
    """An adversary's choice of the head of a lane; no effect on an empty lane."""

    when: int
    lane: str


Move = (
    Publishing
    | Subscribing
    | Ending
    | Leaving
    | Forgetting
    | Moving
    | Reattaching
    | Joining
    | Departing
    | Changing
    | Failing
    | Taking
)
_SET_ELSEWHERE = {
    "session",
    *(name for each in DEFINITIONS.values() for name in each.topology_parameters),
}
"""Fields of parameters that other lines of a plan set."""
_VERBS = (
    "publish",
    "subscribe",
    "unsubscribe",
    "detach",
    "forget",
    "move",
    "reattach",
    "join",
    "depart",
    "role",
    "fault",
    "take",
)


@dataclass(frozen=True, slots=True)
class Broken:
    """A link that stays broken after all other faults are healed.

    Attributes:
        kind: one of BROKEN_FOR_EVER; one way is from a to b.
    """

    kind: str
    a: str
    b: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run of a cluster. The same plan and code give the same history.

    Attributes:
        adversarial: no durations; `when` of every move is then a step, otherwise nanoseconds.
        chance: seed of all choices outside of the plan: latencies, the effect of a crash on a disk,
            the order of an adversary's events.
        drawn: an adversary draws its choice in steps without a move.
        failures_at_once: maximum number of failed elements; faults beyond do not begin.
        links_at_once: maximum number while only links are failed.
        publishers: clients from the beginning; `x-b1` is at b1, as for any client.
        limits: constants of the code with other values, by dotted name.
        consumers: clients with committed positions at their broker, with the number of publications
            before a commit.
        moves: the moves in the order of `when`.
        heal: instant of the end of all faults.
        broken: links that stay broken from then on until all possible deliveries have arrived.
        end: instant of the last move after healing; the time limits begin then.
    """

    protocol: str
    topology: Topology
    adversarial: bool
    chance: int
    parameters: Any
    network: NetworkParameters
    mutants: tuple[str, ...] = ()
    limits: tuple[tuple[str, int], ...] = ()
    drawn: bool = True
    failures_at_once: int
    links_at_once: int
    publishers: tuple[str, ...]
    consumers: tuple[tuple[str, int], ...] = ()
    moves: tuple[Move, ...]
    heal: int
    broken: tuple[Broken, ...] = ()
    end: int

    @property
    def faults(self) -> int:
        """The number of faults, with broken links."""
        return sum(type(move) is Failing for move in self.moves) + len(self.broken)

    @property
    def publications(self) -> int:
        """The number of publications by clients."""
        return sum(len(move.contents) for move in self.moves if type(move) is Publishing)

    def size(self) -> str:
        """Return the size in words."""
        subscriptions = sum(type(move) is Subscribing for move in self.moves)
        return (
            f"{self.faults} faults, {len(self.topology.brokers)} brokers, "
            f"{self.publications} publications, {subscriptions} subscriptions"
        )

    def with_moves(self, moves: Iterable[Move]) -> "Plan":
        """Return the plan with other moves, sorted."""
        return replace(self, moves=tuple(sorted(moves, key=lambda move: move.when)))


def home_of(client: str) -> str:
    """Return the broker of a client of a plan."""
    return client.partition("-")[2]


def make_topology(brokers: Iterable[str], links: Iterable[tuple[str, str]], delta: int) -> Topology:
    """Return a topology for a plan.

    Raises:
        ConfigError: the links are no tree of these brokers.
    """
    return Topology.from_mapping(
        {
            "schema": SCHEMA,
            "name": "plan",
            "kind": "tree",
            "tree": {"delta": delta},
            "brokers": list(brokers),
            "links": [list(link) for link in links],
        },
        "plan",
    )


def topology_of_kind(kind: str, section: Any, brokers: Iterable[str]) -> Topology:
    """Return a topology of another kind for a plan.

    Raises:
        ConfigError: the kind refuses the topology.
    """
    return Topology.from_mapping(
        {"schema": SCHEMA, "name": "plan", "kind": kind, kind: section, "brokers": [*brokers]},
        "plan",
    )


def with_settings(plan: Plan, settings: Iterable[str]) -> Plan:
    """Return the plan with changed parameters of its protocol, each as `name=value`.

    Raises:
        ConfigError: see `set_parameters`.
    """
    chosen = set_parameters(plan.parameters, plan.protocol, plan.topology, settings)
    return replace(plan, parameters=chosen)


def set_parameters(
    parameters: Any, protocol: str, topology: Topology, settings: Iterable[str]
) -> Any:
    """Return the parameters of a protocol with some changed, each as `name=value`.

    Values are written as `typed_value` reads them.

    Raises:
        ConfigError: no such parameter or value, with the nearest; or the protocol refuses
            topologies that set the value.
    """
    planning, definition = planning_of(protocol), definition_of(protocol)
    known = [
        item.name for item in fields(parameters) if item.name not in definition.topology_parameters
    ]
    for setting in settings:
        name, equals, text = setting.partition("=")
        name, text = name.strip(), text.strip()
        if name not in known:
            raise ConfigError(f"no parameter {name!r}{nearest(name, known)}")
        if not equals:
            raise ConfigError(f"{name} without a value; write {name}=VALUE")
        value = typed_value(text)
        if name == "profile":
            parameters = planning.in_profile(parameters, str(value))
            continue
        now = getattr(parameters, name)
        if isinstance(now, str) and not isinstance(value, str):
            value = text
        elif type(now) is int and isinstance(value, float) and value.is_integer():
            value = int(value)
        values = {item.name: getattr(parameters, item.name) for item in fields(parameters)}
        parameters = type(parameters).from_mapping({**values, name: value}, setting)
        set_there = replace(topology, settings=((protocol, ((name, value),)),))
        definition.check_topology(set_there, setting)
    return parameters


# ---------------------------------------------------------------- text


def write_plan(plan: Plan, story: Iterable[str] = ()) -> str:
    """Return the plan as text, below lines of comment."""
    when = _write_step if plan.adversarial else _write_instant
    joining = (move.broker for move in plan.moves if type(move) is Joining)
    names = *plan.topology.brokers, *joining
    planning = planning_of(plan.protocol)
    defaults = planning.parameters(planning.tolerated(plan.topology), {})
    lines = [*(f"# {line}".rstrip() for line in story)]
    lines += [
        f"simulation {LAYERS[plan.adversarial]}",
        *_write_overlay(plan),
        f"limits failed={plan.failures_at_once} links={plan.links_at_once}",
        *_write_settings("network", plan.network, NetworkParameters()),
        *_write_settings("session", plan.network.session, SessionParameters()),
        *_write_settings("core", plan.parameters, defaults),
        f"chance {plan.chance}{'' if plan.drawn else ' only'}",
        *(f"lowered {name}={value}" for name, value in plan.limits),
        *(f"publisher {name}" for name in plan.publishers),
        *(f"consumer {name} {uncommitted}" for name, uncommitted in plan.consumers),
    ]
    before = [move for move in plan.moves if move.when < plan.heal]
    after = plan.moves[len(before) :]
    lines += [f"at {when(move.when)} {_write_move(move, names, when)}" for move in before]
    lines.append(f"heal {when(plan.heal)}")
    lines += [f"broken {broken.kind} {broken.a} {broken.b}" for broken in plan.broken]
    lines += [f"at {when(move.when)} {_write_move(move, names, when)}" for move in after]
    lines.append(f"end {when(plan.end)}")
    return "\n".join(lines) + "\n"


def _write_overlay(plan: Plan) -> Iterator[str]:
    topology = plan.topology
    names = topology.brokers
    if topology.kind == TREE:
        yield " ".join((f"protocol {plan.protocol} delta={topology.delta}", *plan.mutants))
        yield f"brokers {' '.join(names)}"
        yield f"links {' '.join(f'{names[a]}-{names[b]}' for a, b in topology.links)}".rstrip()
        return
    yield " ".join((f"protocol {plan.protocol}", *plan.mutants))
    yield f"brokers {' '.join(names)}"
    yield f"overlay {topology.kind} {json.dumps(topology.section.to_mapping())}"


def is_plan(text: str) -> bool:
    """Return True if a text is meant to be a plan."""
    first = next((line for line in text.splitlines() if line and not line.startswith("#")), "")
    return first.split(" ")[0] == "simulation"


def read_plan(text: str) -> Plan:
    """Return the plan in a text.

    Raises:
        PlanError: names the line, the mistake, and the valid words.
    """
    reader = _Reader()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            reader.read(line)
        except (ConfigError, ValueError, IndexError) as error:
            raise PlanError(f"line {number}, {line!r}: {error}") from error
    return reader.plan()


@dataclass(slots=True)
class _Reader:
    """A reader of a plan's lines, one after the other."""

    layer: str = ""
    protocol: str = ""
    delta: int = 0
    mutants: tuple[str, ...] = ()
    brokers: list[str] = field(default_factory=list)
    kind: str = TREE
    section: Any = None
    links: list[tuple[str, str]] = field(default_factory=list)
    limits: dict[str, int] = field(default_factory=dict)
    lowered: list[tuple[str, int]] = field(default_factory=list)
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    chance: int = 0
    drawn: bool = True
    publishers: list[str] = field(default_factory=list)
    consumers: list[tuple[str, int]] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    joining: list[str] = field(default_factory=list)
    heal: int = -1
    broken: list[Broken] = field(default_factory=list)
    end: int = -1

    def read(self, line: str) -> None:
        """Read one line that is not a comment."""
        key, *words = line.split()
        if key == "overlay":
            self._on_overlay(line)
            return
        readers = {
            "simulation": self._on_simulation,
            "protocol": self._on_protocol,
            "brokers": self.brokers.extend,
            "links": self._on_links,
            "limits": lambda words: self.limits.update(_numbers(words, ("failed", "links"))),
            "network": lambda words: self._on_settings("network", NetworkParameters, words),
            "session": lambda words: self._on_settings("session", SessionParameters, words),
            "core": lambda words: self._on_settings("core", self._parameters(), words),
            "chance": self._on_chance,
            "publisher": lambda words: self.publishers.append(self._client(words[0])),
            "lowered": self._on_lowered,
            "consumer": self._on_consumer,
            "at": lambda words: self.moves.append(self._move(words, line)),
            "heal": self._on_heal,
            "broken": self._on_broken,
            "end": self._on_end,
        }
        if key not in readers:
            raise PlanError(f"unknown word {key!r}{nearest(key, [*readers, 'overlay'])}")
        readers[key](words)

    def _parameters(self) -> type[Parameters]:
        if not self.protocol:
            raise PlanError("a line `core` before the line `protocol`")
        return definition_of(self.protocol).parameters

    def plan(self) -> Plan:
        """Return the plan of all lines."""
        for what, there in (
            ("simulation", self.layer),
            ("protocol", self.protocol),
            ("brokers", self.brokers),
            ("limits", len(self.limits) == 2),
            ("heal", self.heal >= 0),
            ("end", self.end >= 0),
        ):
            if not there:
                raise PlanError(f"a plan without a line `{what}`")
        if self.joining and not definition_of(self.protocol).promises.members_may_change:
            raise PlanError(f"no broker can join where the protocol is {self.protocol}")
        topology = self._topology()
        planning = planning_of(self.protocol)
        session = SessionParameters(**self.settings.get("session", {}))
        return Plan(
            protocol=self.protocol,
            topology=topology,
            adversarial=self.layer == "adversarial",
            chance=self.chance,
            parameters=planning.parameters(
                planning.tolerated(topology), self.settings.get("core", {})
            ),
            network=NetworkParameters(session=session, **self.settings.get("network", {})),
            mutants=self.mutants,
            limits=tuple(self.lowered),
            drawn=self.drawn,
            failures_at_once=self.limits["failed"],
            links_at_once=self.limits["links"],
            publishers=tuple(self.publishers),
            consumers=tuple(self.consumers),
            moves=(),
            heal=self.heal,
            broken=tuple(self.broken),
            end=self.end,
        ).with_moves(self.moves)

    def _on_simulation(self, words: list[str]) -> None:
        if words[0] not in LAYERS:
            raise PlanError(f"{words[0]!r} is no layer; one of {', '.join(LAYERS)}")
        self.layer = words[0]

    def _on_protocol(self, words: list[str]) -> None:
        if words[0] not in DEFINITIONS:
            raise PlanError(f"no protocol {words[0]!r}{nearest(words[0], [*DEFINITIONS])}")
        self.protocol = words[0]
        if definition_of(self.protocol).kind == TREE:
            self.delta = _numbers(words[1:2], ("delta",))["delta"]
            words = words[1:]
        self.mutants = tuple(named_bug(word, self.protocol).name for word in words[1:])

    def _on_overlay(self, line: str) -> None:
        _, self.kind, section = line.split(None, 2)
        try:
            self.section = json.loads(section)
        except json.JSONDecodeError as error:
            raise PlanError(f"the section of a topology file, in JSON: {error}") from error

    def _topology(self) -> Topology:
        if self.kind == TREE:
            return make_topology(self.brokers, self.links, self.delta)
        return topology_of_kind(self.kind, self.section, self.brokers)

    def _on_links(self, words: list[str]) -> None:
        for word in words:
            a, b = word.split("-")
            self.links.append((a, b))

    def _on_settings(self, section: str, kind: type, words: list[str]) -> None:
        known = {item.name: item.type for item in fields(kind)}
        for word in words:
            name, _, value = word.partition("=")
            if name not in known or name in _SET_ELSEWHERE:
                raise PlanError(f"unknown parameter {name!r}{nearest(name, sorted(known))}")
            self.settings.setdefault(section, {})[name] = (
                value
                if known[name] is str
                else value == "True"
                if value in _BOOLEANS
                else int(value)
            )
        kind(**self.settings[section])

    def _on_chance(self, words: list[str]) -> None:
        self.chance, self.drawn = int(words[0]), words[1:] != ["only"]

    def _on_lowered(self, words: list[str]) -> None:
        for word in words:
            name, _, value = word.partition("=")
            self.lowered.append((check_limit(name, limits_of(self.protocol)), int(value)))

    def _on_consumer(self, words: list[str]) -> None:
        if not definition_of(self.protocol).promises.keeps_committed:
            raise PlanError(f"no client is a consumer where the protocol is {self.protocol}")
        if int(words[1]) < 1:
            raise PlanError(f"{words[1]} publications before a commit; at least 1")
        self.consumers.append((self._client(words[0]), int(words[1])))

    def _on_heal(self, words: list[str]) -> None:
        self.heal = self._when(words[0])

    def _on_end(self, words: list[str]) -> None:
        self.end = self._when(words[0])

    def _on_broken(self, words: list[str]) -> None:
        kind, a, b = words
        if kind not in BROKEN_FOR_EVER:
            raise PlanError(f"{kind!r} is not how a link stays{nearest(kind, BROKEN_FOR_EVER)}")
        self.broken.append(Broken(kind, self._broker(a), self._broker(b)))

    def _move(self, words: list[str], line: str) -> Move:
        when, verb, *rest = words
        at = self._when(when)
        if verb == "publish":
            contents = [word.split(",") for word in rest[1:]]
            return Publishing(
                at,
                self._client(rest[0]),
                tuple(
                    Contents(_read_kind(kind), int(price), int(size))
                    for kind, price, size in contents
                ),
            )
        if verb == "subscribe":
            predicate = line.split(None, 4)[4]
            return Subscribing(at, self._client(rest[0]), predicate)
        if verb == "unsubscribe":
            return Ending(at, self._client(rest[0]), int(rest[1]))
        if verb == "detach":
            return Leaving(at, self._client(rest[0]))
        if verb == "forget":
            return Forgetting(at, self._client(rest[0]), int(rest[1]))
        if verb == "move":
            return Moving(at, self._client(rest[0]), self._broker(rest[1]))
        if verb == "reattach":
            if not definition_of(self.protocol).promises.resumes_elsewhere:
                raise PlanError(f"no client can reattach where the protocol is {self.protocol}")
            return Reattaching(at, self._client(rest[0]), self._broker(rest[1]))
        if verb == "join":
            place, *further = map(self._broker, rest[1:])
            self.joining.append(rest[0])
            return Joining(at, rest[0], place, tuple(further))
        if verb == "depart":
            return Departing(at, self._broker(rest[0]))
        if verb == "role":
            if not definition_of(self.protocol).promises.roles_may_change:
                raise PlanError(f"no broker changes where the protocol is {self.protocol}")
            return Changing(at, self._broker(rest[0]), rest[1])
        if verb == "fault":
            until = rest.index("then") if "then" in rest else len(rest)
            stages = tuple(self._when(word) for word in rest[until + 1 :])
            return Failing(at, rest[0], tuple(rest[1:until]), stages)
        if verb == "take":
            return Taking(at, _read_lane(rest[0], [*self.brokers, *self.joining]))
        raise PlanError(f"unknown verb {verb!r}{nearest(verb, _VERBS)}")

    def _when(self, word: str) -> int:
        return int(word) if self.layer == "adversarial" else _read_instant(word)

    def _client(self, name: str) -> str:
        self._broker(home_of(name))
        return name

    def _broker(self, name: str) -> str:
        if name not in self.brokers and name not in self.joining:
            raise PlanError(f"no broker {name!r}{nearest(name, self.brokers)}")
        return name


def _read_kind(word: str) -> Scalar:
    if word.isalpha() and word not in ("true", "false"):
        return word
    kind: Scalar = json.loads(word)
    return kind


def _write_kind(kind: Scalar) -> str:
    plain = isinstance(kind, str) and kind.isalpha() and kind not in ("true", "false")
    return str(kind) if plain else json.dumps(kind)


def _write_move(move: Move, names: tuple[str, ...], when: Any) -> str:
    if type(move) is Publishing:
        contents = (
            f"{_write_kind(item.kind)},{item.price},{item.payload_bytes}" for item in move.contents
        )
        return f"publish {move.client} {' '.join(contents)}"
    if type(move) is Subscribing:
        return f"subscribe {move.client} {move.predicate}"
    if type(move) is Ending:
        return f"unsubscribe {move.client} {move.number}"
    if type(move) is Leaving:
        return f"detach {move.client}"
    if type(move) is Forgetting:
        return f"forget {move.client} {move.keeps}"
    if type(move) is Moving:
        return f"move {move.client} {move.to}"
    if type(move) is Reattaching:
        return f"reattach {move.client} {move.to}"
    if type(move) is Joining:
        return f"join {move.broker} {' '.join(move.near)}"
    if type(move) is Departing:
        return f"depart {move.broker}"
    if type(move) is Changing:
        return f"role {move.broker} {move.role}"
    if type(move) is Failing:
        then = " ".join(("", "then", *map(when, move.stages))) if move.stages else ""
        return f"fault {' '.join((move.kind, *move.on))}{then}"
    assert type(move) is Taking, f"no words for {move}"
    return f"take {_write_lane(move.lane, names)}"


def _write_settings(section: str, values: Any, defaults: Any) -> Iterator[str]:
    differing = [
        f"{item.name}={getattr(values, item.name)}"
        for item in fields(values)
        if item.name not in _SET_ELSEWHERE
        and getattr(values, item.name) != getattr(defaults, item.name)
    ]
    if differing:
        yield f"{section} {' '.join(differing)}"


def _write_lane(lane: str, names: tuple[str, ...]) -> str:
    """Return a lane with names of brokers in place of numbers."""
    return re.sub(r"(?<![^:>])\d+(?![^:>#])", lambda found: names[int(found[0])], lane)


def _read_lane(lane: str, names: list[str]) -> str:
    parts = re.split(r"([:>#])", lane)
    return "".join(str(names.index(part)) if part in names else part for part in parts)


def _write_instant(ns: int) -> str:
    text = f"{ns / SECOND_NS:.9f}".rstrip("0")
    return text + "0" if text.endswith(".") else text


def _read_instant(word: str) -> int:
    found = re.fullmatch(r"(\d+)(?:\.(\d{1,9}))?", word)
    if not found:
        raise PlanError(f"{word!r} is no instant; write seconds such as 0.25")
    return int(found[1]) * SECOND_NS + int((found[2] or "").ljust(9, "0"))


def _write_step(step: int) -> str:
    return str(step)


def _numbers(words: list[str], known: tuple[str, ...]) -> dict[str, int]:
    numbers = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in known:
            raise PlanError(f"unknown key {name!r}{nearest(name, known)}")
        numbers[name] = int(value)
    return numbers
