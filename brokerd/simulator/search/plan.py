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
    at 0.25 subscribe s1-b3 kind = 'a'   a move; `moves` has all of them
    heal 4.5
    broken cut_one_way b1 b2             from healing on
    end 6
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

from brokerd.config import SessionParameters, parse_value
from brokerd.errors import ConfigError
from brokerd.overlay.topology import SCHEMA, TREE, Topology, nearest
from brokerd.protocols.definition import Parameters
from brokerd.protocols.registry import DEFINITIONS, definition_of
from brokerd.simulator.checks.growth import check_limit
from brokerd.simulator.checks.protocol_checks import limits_of, named_bug, planning_of
from brokerd.simulator.search.client_moves import PublicationRun, SubscriptionRequest
from brokerd.simulator.search.move import Move, PlanError, PlanScope
from brokerd.simulator.search.moves import MOVES, BrokerJoin, FaultInjection
from brokerd.simulator.world.sessions import NetworkParameters
from brokerd.text import counted, first_word

LAYERS = ("timed", "adversarial")
_BOOLEANS = ("True", "False")
BROKEN_FOR_EVER = ("cut", "cut_one_way", "blackhole", "blackhole_one_way")


_SET_ELSEWHERE = {
    "session",
    *(name for each in DEFINITIONS.values() for name in each.topology_parameters),
}
"""Fields of parameters that other lines of a plan set."""


@dataclass(frozen=True, slots=True)
class BrokenLink:
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
    broken: tuple[BrokenLink, ...] = ()
    end: int

    @property
    def faults(self) -> int:
        """The number of faults, with broken links."""
        return sum(type(move) is FaultInjection for move in self.moves) + len(self.broken)

    @property
    def publications(self) -> int:
        """The number of publications by clients."""
        return sum(len(move.contents) for move in self.moves if type(move) is PublicationRun)

    def size(self) -> str:
        subscriptions = sum(type(move) is SubscriptionRequest for move in self.moves)
        return (
            f"{counted(self.faults, 'fault')}, {counted(len(self.topology.brokers), 'broker')}, "
            f"{counted(self.publications, 'publication')}, "
            f"{counted(subscriptions, 'subscription')}"
        )

    def with_moves(self, moves: Iterable[Move]) -> "Plan":
        """Return the plan with other moves, sorted."""
        return replace(self, moves=tuple(sorted(moves, key=lambda move: move.when)))


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

    Values are written as `parse_value` reads them.

    Raises:
        ConfigError: no such parameter or value, with the nearest; or the protocol refuses
            topologies that set the value.
    """
    planning, definition = planning_of(protocol), definition_of(protocol)
    chosen: dict[str, Any] = {}
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
        value = parse_value(text)
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
        chosen[name] = value
    # Beside defaults, as in a topology: what a seed draws beside a value is no reason to refuse.
    where = f"parameters.{protocol}"
    type(parameters).from_mapping(chosen, where).check(where)
    return parameters


# ---------------------------------------------------------------- text


def write_plan(plan: Plan, story: Iterable[str] = ()) -> str:
    """Return the plan as text, below lines of comment."""
    joining = [move.broker for move in plan.moves if type(move) is BrokerJoin]
    scope = PlanScope(plan.protocol, plan.adversarial, [*plan.topology.brokers], joining)
    when = scope.write_instant
    planning = planning_of(plan.protocol)
    defaults = planning.parameters(planning.count_tolerated(plan.topology), {})
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
    lines += [_write_move(move, scope) for move in before]
    lines.append(f"heal {when(plan.heal)}")
    lines += [f"broken {broken.kind} {broken.a} {broken.b}" for broken in plan.broken]
    lines += [_write_move(move, scope) for move in after]
    lines.append(f"end {when(plan.end)}")
    return "\n".join(lines) + "\n"


def _write_move(move: Move, scope: PlanScope) -> str:
    return f"at {scope.write_instant(move.when)} {move.verb} {move.write(scope)}"


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
    return first_word(text) == "simulation"


def read_plan(text: str) -> Plan:
    """Return the plan in a text.

    Raises:
        PlanError: names the line, the mistake, and the valid words.
    """
    lines = text.splitlines()
    reader = _Reader(joining=_list_joining(lines))
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            reader.read(line)
        except (ConfigError, ValueError, IndexError) as error:
            raise PlanError(f"line {number}, {line!r}: {error}") from error
    return reader.plan()


def _list_joining(lines: list[str]) -> list[str]:
    """Return the brokers that join; a move may name a broker before its join, without effect."""
    words = [line.split() for line in lines]
    return [
        each[3]
        for each in words
        if each[:1] == ["at"] and each[2:3] == [BrokerJoin.verb] and each[3:]
    ]


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
    broken: list[BrokenLink] = field(default_factory=list)
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
            "publisher": lambda words: self.publishers.append(self._scope.client(words[0])),
            "lowered": self._on_lowered,
            "consumer": self._on_consumer,
            "at": lambda _: self.moves.append(self._move(line)),
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
        for section, there in (
            ("simulation", self.layer),
            ("protocol", self.protocol),
            ("brokers", self.brokers),
            ("limits", len(self.limits) == 2),
            ("heal", self.heal >= 0),
            ("end", self.end >= 0),
        ):
            if not there:
                raise PlanError(f"a plan without a line `{section}`")
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
                planning.count_tolerated(topology), self.settings.get("core", {})
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
        self.consumers.append((self._scope.client(words[0]), int(words[1])))

    def _on_heal(self, words: list[str]) -> None:
        self.heal = self._when(words[0])

    def _on_end(self, words: list[str]) -> None:
        self.end = self._when(words[0])

    def _on_broken(self, words: list[str]) -> None:
        kind, a, b = words
        if kind not in BROKEN_FOR_EVER:
            raise PlanError(f"{kind!r} is not how a link stays{nearest(kind, BROKEN_FOR_EVER)}")
        self.broken.append(BrokenLink(kind, self._scope.broker(a), self._scope.broker(b)))

    def _move(self, line: str) -> Move:
        _, when, verb, *rest = line.split(None, 3)
        at = self._when(when)
        if verb not in MOVES:
            raise PlanError(f"unknown verb {verb!r}{nearest(verb, [*MOVES])}")
        return MOVES[verb].read(at, "".join(rest), self._scope)

    @property
    def _scope(self) -> PlanScope:
        adversarial = self.layer == "adversarial"
        return PlanScope(self.protocol, adversarial, self.brokers, self.joining)

    def _when(self, word: str) -> int:
        return self._scope.read_instant(word)


def _write_settings(section: str, values: Any, defaults: Any) -> Iterator[str]:
    differing = [
        f"{item.name}={getattr(values, item.name)}"
        for item in fields(values)
        if item.name not in _SET_ELSEWHERE
        and getattr(values, item.name) != getattr(defaults, item.name)
    ]
    if differing:
        yield f"{section} {' '.join(differing)}"


def _numbers(words: list[str], known: tuple[str, ...]) -> dict[str, int]:
    numbers = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in known:
            raise PlanError(f"unknown key {name!r}{nearest(name, known)}")
        numbers[name] = int(value)
    return numbers
