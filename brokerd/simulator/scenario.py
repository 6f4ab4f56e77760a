"""Scenarios as text: commands, each with the resulting actions of the brokers.

A scenario is a series of blocks with an empty line between them. A block consists of commands, a
line `----`, and the result. Lines that begin with `#` before the first block are the story of the
scenario.

    protocol NAME [delta=N] [PARAMETER=VALUE]…   first command; assist is off by default
    chain b1 b2 b3                 or `star middle b2 b3`, or `tree b1-b2 b2-b3`; starts all
    cells p1-ib ib-s1 ib=b1,b2     cells of brokers with bundles between the cells
    hierarchy b1=0.0 b2=1.0 b1-b2  brokers with addresses, and links
    subscribe b3 [as c1] PREDICATE a subscription of client c-b3, or of the named client
    unsubscribe c1 [2] | detach c1 the client ends subscription 1, or another; or detaches
    publish b1 [as p1] [xN] a=1    N publications as one run, by client p-b1 or the named client
    stabilize | run 500ms          until nothing is in flight except retries towards unreachable
                                   brokers, a minute at most; or for this time
    cut a b | cut a > b | blackhole a b | absorb a b | heal a b | suspect a b
    absorb a > b | pass a > b [xN]  only signs of life pass; then the first message, or N
    delay a b 50ms | delay a b 0ms  every message between two brokers takes longer
    slow c-b3 50ms                  the application needs this time for a delivery
    kill b | start b | restart b | absorb b | release b | freeze b | thaw b
    omit_sends b                   handle all and send only signs of life, until release b
    received c-b3 | status b2 | judge
    quietly COMMAND                perform a command without output of the brokers' actions
    partitions told | untold       output of partition tables and their gossip; untold by default

Every message takes one millisecond, so the same text always gives the same result.
"""

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from brokerd.errors import ConfigError
from brokerd.model.identity import Peer
from brokerd.model.predicate import PredicateError, Scalar
from brokerd.model.predicate_text import parse_predicate
from brokerd.overlay.topology import ALL_PROTOCOLS, SCHEMA, nearest
from brokerd.protocols.interface import Effect, Event, MessageReceived
from brokerd.protocols.registry import DEFINITIONS, read_topology
from brokerd.simulator.checks.protocol_checks import simulation_of
from brokerd.simulator.checks.step_text import Wording
from brokerd.simulator.world.broker import SimulatedBroker
from brokerd.simulator.world.clients import SimulatedClient
from brokerd.simulator.world.cluster import NotQuietError, SimulatedCluster
from brokerd.simulator.world.sessions import NetworkParameters
from brokerd.units import MILLISECOND_NS, SECOND_NS
from brokerd.wire.attributes import encode_attributes

_COMMANDS_END = "----"
_NETWORK = NetworkParameters(
    latency_lowest_ns=MILLISECOND_NS,
    latency_highest_ns=MILLISECOND_NS,
    jitter_ns=0,
    lost_on_close=False,
)


class ScenarioError(ConfigError):
    """A scenario that cannot be played; names the line and the valid words; the user's fault."""


def play_scenario(text: str) -> str:
    """Return the scenario with the present results of its commands in place of the written results.

    Raises:
        ScenarioError: a command that is unknown or cannot be performed.
    """
    return _play(text, _Player())


def cluster_after(text: str) -> SimulatedCluster:
    """Return the cluster after the commands of a scenario.

    Raises:
        ScenarioError: a command that is unknown or cannot be performed, or no cluster at all.
    """
    player = _Player()
    _play(text, player)
    return player.cluster


def _play(text: str, player: "_Player") -> str:
    blocks = []
    for block in re.split(r"\n{2,}", text.strip("\n")):
        lines = block.split("\n")
        story = [line for line in lines if line.startswith("#")]
        commands = [line for line in lines if not line.startswith("#")]
        if _COMMANDS_END in commands:
            commands = commands[: commands.index(_COMMANDS_END)]
        if not commands:
            blocks.append("\n".join(story))
            continue
        output = [line for command in commands for line in player.carry_out(command)]
        blocks.append("\n".join([*story, *commands, _COMMANDS_END, *(output or ["ok"])]))
    return "\n\n".join(blocks) + "\n"


class _Player:
    """A performer of commands that collects the actions of brokers."""

    def __init__(self) -> None:
        self._protocol = ""
        self._parameters: dict[str, int | str] = {"delta": 1, "assist": "off"}
        self._cluster: SimulatedCluster | None = None
        self._words: Wording
        self._output: list[str] = []
        self._watched: Peer | None = None
        self._listening = True
        self._announces_partitions = False
        self._commands: dict[str, Callable[[list[str]], None]] = {
            "protocol": self._on_protocol,
            "chain": lambda names: self._build(names, list(pairwise(names))),
            "star": lambda names: self._build(names, [(names[0], name) for name in names[1:]]),
            "tree": self._on_tree,
            "cells": self._on_cells,
            "hierarchy": self._on_hierarchy,
            "subscribe": self._on_subscribe,
            "unsubscribe": self._on_unsubscribe,
            "detach": self._on_detach,
            "publish": self._on_publish,
            "stabilize": self._on_stabilize,
            "run": self._on_run,
            "received": self._on_received,
            "status": self._on_status,
            "judge": self._on_judge,
            "quietly": self._on_quietly,
            "pass": self._on_pass,
            "delay": self._on_delay,
            "slow": self._on_slow,
            "partitions": self._on_partitions,
        }
        self._broker_verbs = (
            *("kill", "start", "restart", "absorb", "omit_sends", "release", "freeze", "thaw"),
        )
        self._link_verbs = ("cut", "blackhole", "absorb", "heal", "suspect")

    def carry_out(self, command: str) -> list[str]:
        """Perform one command; return the observed actions."""
        self._output = []
        verb, *words = command.split()
        try:
            if verb in self._commands:
                self._commands[verb](words)
            elif verb in self._broker_verbs and len(words) == 1:
                self._on_broker(verb, words[0])
            elif verb in self._link_verbs:
                self._on_link(verb, words)
            else:
                known = (*self._commands, *self._broker_verbs, *self._link_verbs)
                raise ScenarioError(f"unknown command {verb!r}{nearest(verb, known)}")
        except IndexError as error:
            raise ScenarioError(f"{command!r}: a word is missing") from error
        except (ConfigError, PredicateError, ValueError) as error:
            raise ScenarioError(f"{command!r}: {error}") from error
        return self._output

    @property
    def cluster(self) -> SimulatedCluster:
        """The cluster under test."""
        if self._cluster is None:
            raise ScenarioError("name the brokers first: chain, star, tree, cells, hierarchy")
        return self._cluster

    # ------------------------------------------------------------ commands

    def _on_protocol(self, words: list[str]) -> None:
        if words[0] not in DEFINITIONS:
            raise ScenarioError(f"protocol {words[0]!r}; one of {', '.join(DEFINITIONS)}")
        self._protocol = words[0]
        for word in words[1:]:
            key, _, value = word.partition("=")
            self._parameters[key] = int(value) if value.isdecimal() else value

    def _on_tree(self, words: list[str]) -> None:
        links = [(word.split("-")[0], word.split("-")[1]) for word in words]
        self._build(list(dict.fromkeys(name for link in links for name in link)), links)

    def _on_cells(self, words: list[str]) -> None:
        parts = [word.partition("=") for word in words]
        members = {cell: listed.split(",") for cell, sign, listed in parts if sign}
        bundles = [word.split("-") for word in words if "=" not in word]
        ends = dict.fromkeys(cell for bundle in bundles for cell in bundle)
        names = [name for cell in ends for name in members.get(cell, [cell])]
        section = {"bundles": bundles, **({"members": members} if members else {})}
        self._build_on({"kind": "cells", "cells": section, "brokers": names})

    def _on_hierarchy(self, words: list[str]) -> None:
        parts = [word.partition("=") for word in words]
        addresses = {name: address for name, sign, address in parts if sign}
        links = [word.split("-") for word in words if "=" not in word]
        section = {"addresses": addresses, "links": links}
        self._build_on({"kind": "hierarchy", "hierarchy": section, "brokers": [*addresses]})

    def _build(self, names: list[str], links: list[tuple[str, str]]) -> None:
        tree = {"delta": self._parameters["delta"]}
        pairs = [list(link) for link in links]
        self._build_on({"kind": "tree", "tree": tree, "brokers": names, "links": pairs})

    def _build_on(self, overlay: dict[str, Any]) -> None:
        if not self._protocol:
            raise ScenarioError("begin with the line `protocol NAME`")
        parameters = {key: self._parameters[key] for key in self._parameters if key != "delta"}
        every = {"assist": parameters.pop("assist")}
        values = {"schema": SCHEMA, "name": "scenario", **overlay}
        values["parameters"] = {ALL_PROTOCOLS: every, self._protocol: parameters}
        topology = read_topology(values, "scenario")
        self._cluster = SimulatedCluster(
            topology,
            self._protocol,
            network=_NETWORK,
            strict=False,
            watcher=self._watch,
        )
        self._words = simulation_of(self._protocol).make_wording(self._cluster)
        self._quietly(self._cluster.start)
        self._quietly(self._cluster.run_until_quiet)

    def _on_subscribe(self, words: list[str]) -> None:
        broker, client, rest = _parse_client(words, "c")
        self._connect(broker, client, publishes=False)
        self._client(client)
        self.cluster.subscribe(broker, parse_predicate(" ".join(rest)), client)
        self._run_until_received(client)

    def _on_unsubscribe(self, words: list[str]) -> None:
        client, number = self._client(words[0]), int(words[1]) if len(words) > 1 else 1
        if number not in client.core.subscriptions:
            raise ScenarioError(f"{client.name} has no subscription {number}")
        self.cluster.unsubscribe(client.name, number)
        self._run_until_received(words[0])

    def _on_detach(self, words: list[str]) -> None:
        self._client(words[0])
        self.cluster.population.detach(words[0])
        self._run_until_received(words[0])

    def _on_publish(self, words: list[str]) -> None:
        broker, client, rest = _parse_client(words, "p")
        count = 1
        if rest and re.fullmatch(r"x\d+", rest[0]):
            count = int(rest.pop(0)[1:])
        attributes = dict(_attribute(word) for word in rest)
        self._connect(broker, client, publishes=True)
        if not self._client(client).publishes:
            raise ScenarioError(f"{client} is there to subscribe, and not to publish")
        blob = encode_attributes(attributes)
        self.cluster.publish_run(broker, [(blob, b"")] * count, client)
        self._run_until_received(client)

    def _on_stabilize(self, _words: list[str]) -> None:
        try:
            self.cluster.run_until_quiet()
        except NotQuietError as error:
            raise ScenarioError(str(error)) from None

    def _on_run(self, words: list[str]) -> None:
        self.cluster.run_for(_milliseconds(words[0]) / 1000)

    def _on_pass(self, words: list[str]) -> None:
        found = re.fullmatch(r"(\S+) > (\S+?)(?: x(\d+))?", " ".join(words))
        if not found:
            raise ScenarioError("write pass a > b, or pass a > b x3")
        link = self.cluster.link(found[1], found[2])
        for _ in range(int(found[3] or 1)):
            if not link.release_one():
                raise ScenarioError(f"nothing is held on its way from {found[1]} to {found[2]}")

    def _on_delay(self, words: list[str]) -> None:
        self.cluster.link(words[0], words[1]).delay(_milliseconds(words[2]) * MILLISECOND_NS)

    def _on_slow(self, words: list[str]) -> None:
        slow_ns = _milliseconds(words[1]) * MILLISECOND_NS
        self._client(words[0]).take_after_ns = slow_ns

    def _on_broker(self, verb: str, name: str) -> None:
        broker = self.cluster.broker(name)
        if verb == "start" and broker.broker.alive:
            raise ScenarioError(f"{name} runs already")
        if verb != "start" and not broker.broker.alive:
            raise ScenarioError(f"{name} does not run; start it first")
        getattr(broker, verb)()

    def _on_link(self, verb: str, words: list[str]) -> None:
        one_way = len(words) == 3 and words[1] == ">" and verb in ("cut", "blackhole", "absorb")
        if len(words) != 2 and not one_way:
            raise ScenarioError(f"write {verb} a b; cut, blackhole and absorb accept a > b, too")
        link = self.cluster.link(words[0], words[-1])
        if one_way:
            getattr(link, verb)("out")
        else:
            getattr(link, verb)()

    def _on_received(self, words: list[str]) -> None:
        client = self._client(words[0], may_have_left=True)
        for number, publications in client.received.items():
            listed = " ".join(self._words.publication(*publication) for publication in publications)
            self._output.append(f"{client.name}/{number}: {listed or 'nothing'}")

    def _on_status(self, words: list[str]) -> None:
        status = self.cluster.broker(words[0]).status()
        for key, peers in (("wanted", status.wanted), ("ready", status.ready)):
            listed = " ".join(self._words.name(peer) for peer in peers)
            self._output.append(f"{key} {listed or 'nobody'}")
        self._output.append(f"{status.state}, {status.queued} publications queued")

    def _on_judge(self, _words: list[str]) -> None:
        oracle = self.cluster.oracle
        wrong = [*oracle.first_violations, *oracle.obligations.describe_undelivered()]
        self._output += wrong or [f"nothing is missing, {oracle.deliveries} deliveries"]

    def _on_quietly(self, words: list[str]) -> None:
        self._quietly(lambda: self.carry_out(" ".join([words[0], *words[1:]])))
        self._output = []

    def _on_partitions(self, words: list[str]) -> None:
        self._announces_partitions = {"told": True, "untold": False}.get(words[0], False)
        if words[0] not in ("told", "untold"):
            raise ScenarioError(f"partitions {words[0]}; told or untold")

    def _client(self, name: str, *, may_have_left: bool = False) -> SimulatedClient:
        client = self.cluster.clients.get(name)
        if client is None:
            known = nearest(name, list(self.cluster.clients))
            raise ScenarioError(f"no client called {name!r}{known}")
        if client.core.is_detaching and not may_have_left:
            raise ScenarioError(f"{name} has left for good")
        return client

    def _quietly(self, action: Callable[[], object]) -> None:
        self._listening = False
        action()
        self._listening = True

    def _connect(self, broker: str, client: str, publishes: bool) -> None:
        """Create and connect a client, unless its broker is unreachable."""
        if client in self.cluster.clients:
            return
        self._quietly(lambda: self.cluster.client(client, broker, publishes))
        state = self.cluster.clients[client]
        if self.cluster.network.is_open(client, state.broker):
            limit_ns = self.cluster.schedule.now_ns + SECOND_NS
            while not state.core.attached and self.cluster.schedule.now_ns < limit_ns:
                self._quietly(lambda: self.cluster.run_for(0.001))

    def _run_until_received(self, client: str) -> None:
        """Run until the client's broker has received and handled its message."""
        self._watched = client
        limit_ns = self.cluster.schedule.now_ns + 2 * MILLISECOND_NS
        while self._watched is not None and self.cluster.schedule.now_ns < limit_ns:
            if not self.cluster.step(limit_ns):
                break
        self._watched = None

    # ------------------------------------------------------------ actions of brokers

    def _watch(self, broker: SimulatedBroker, event: Event, effects: list[Effect]) -> None:
        if type(event) is MessageReceived and event.peer == self._watched:
            self._watched = None
        if not self._listening:
            return
        lines = [self._words.event(event)]
        for effect in effects:
            if self._announces_partitions or not self._words.is_detail(effect):
                lines.append(self._words.effect(effect))
        self._output += [f"{broker.name} {line}" for line in lines if line]


def _milliseconds(word: str) -> int:
    found = re.fullmatch(r"(\d+)(ms|s)", word)
    if not found:
        raise ScenarioError(f"{word!r} is no duration; write 50ms or 2s")
    return int(found[1]) * (1 if found[2] == "ms" else 1000)


def _parse_client(words: list[str], prefix: str) -> tuple[str, str, list[str]]:
    """Return broker, client and the rest of `b1 [as c1] …`."""
    broker = words[0]
    if len(words) > 2 and words[1] == "as":
        return broker, words[2], words[3:]
    return broker, f"{prefix}-{broker}", words[1:]


def _attribute(word: str) -> tuple[str, Scalar]:
    name, sign, value = word.partition("=")
    if not sign:
        raise ScenarioError(f"{word!r} is no attribute; write name=value")
    if re.fullmatch(r"-?\d+", value):
        return name, int(value)
    return name, float(value) if re.fullmatch(r"-?\d+\.\d+", value) else value
