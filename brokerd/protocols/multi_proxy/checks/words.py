"""The wording of messages between brokers of multi_proxy, for scenarios."""

from typing import Any

from brokerd.model.identity import BrokerNumber
from brokerd.model.publication import PublicationRun
from brokerd.protocols.multi_proxy.messages import (
    Answered,
    Assign,
    Assigned,
    Carry,
    Claim,
    Decommissioned,
    Follow,
    Followed,
    Following,
    Generation,
    Get,
    Give,
    Locate,
    Located,
    Lost,
    Merge,
    Merged,
    Messages,
    Move,
    Owned,
    Owner,
    Periodic,
    Put,
    Servers,
    Stored,
    Transfer,
    Transferred,
    Wanted,
)
from brokerd.simulator.checks.step_text import Wording


class MultiProxyWording(Wording):
    """See Wording; a request is named by access broker and server, a topic by its number."""

    def message(self, message: Any) -> str:
        match message:
            case Servers(reached=reached):
                return f"reaches {' '.join(map(self.name, reached)) or 'no server'}"
            case Put(topic=topic, previous=previous, run=run):
                behind = f" behind {previous}" if previous else ""
                ways = self._route(message.home, message.server)
                return f"put {ways} topic {topic} {self.run(run)}{behind}"
            case Stored(topic=topic, source=source, through=through):
                ways = self._route(message.server, message.home)
                return f"stored {ways} topic {topic} {self.source(source)}/{through}"
            case Follow(number=number, topics=topics):
                ways = self._route(message.home, message.server)
                return f"follow {number} {ways} topics {_join_names(topics)}"
            case Following(server=server, number=number, topics=topics):
                ways = self._route(server, message.home)
                words = " ".join(
                    f"{self._part(each, server)}:{each.done}-{each.head}" for each in topics
                )
                return f"following {number} {ways} {words or 'nothing'}"
            case Get(server=server, wanted=wanted):
                ways = self._route(message.home, server)
                words = " ".join(
                    f"{self._part(each, server)}:{each.done}-{each.after}" for each in wanted
                )
                return f"get {ways} {words}"
            case Messages(home=home, topic=topic, run=run):
                positions = f"{run.first} to {run.last}"
                return f"messages for {self.name(home)} topic {topic} {positions}: {self.run(run)}"
            case Lost(home=home, topic=topic, runs=runs):
                ranges = self.ranges(tuple((run.source, run.first, run.last) for run in runs))
                positions = f"{message.first} to {message.last}"
                return f"lost for {self.name(home)} topic {topic} {positions}: {ranges}"
            case Decommissioned(decommissions=signed):
                return f"decommissioned {' '.join(self.name(broker) for broker, _ in signed)}"
            case Answered():
                return f"answered {self._route(message.server, message.home)}"
            case Owned(owners=owners):
                return f"owned {self._owners(owners)}"
            case Merge(owners=owners) | Merged(owners=owners) | Move(owners=owners):
                return f"{type(message).__name__.lower()} {self._owners(owners)}"
            case Periodic(server=server, topics=topics):
                return f"asked {self.name(server)} topics {_join_names(topics)}"
            case Carry(topic=topic, run=run):
                ways = self._route(message.giver, message.server)
                return f"carry {ways} topic {topic} {run.first} to {run.last}: {self.run(run)}"
            case Transfer(topic=topic, parts=parts):
                ways = self._route(message.giver, message.server)
                words = " ".join(f"{self.name(each.part)}:{each.last}" for each in parts)
                return f"transfer {ways} topic {topic} {words}"
            case Transferred(topic=topic, owner=owner):
                ways = self._route(message.server, message.giver)
                return f"transferred {ways} topic {topic} to {self.name(owner)}"
            case Give(topic=topic, owner=owner, generation=generation):
                ways = self._route(message.arbiter, message.server)
                return f"give {ways} {topic}/{generation} to {self.name(owner)}"
            case Locate(topics=topics):
                return f"locate {self._route(message.home, message.server)} {_join_names(topics)}"
            case Claim(candidates=candidates):
                ways = self._route(message.home, message.server)
                return f"claim {ways} {self._owners(candidates)}"
            case Located(owners=owners):
                return f"located {self._route(message.server, message.home)} {self._owners(owners)}"
            case Assign(generations=generations):
                ways = self._route(message.arbiter, message.server)
                return f"assign {ways} {_generations(generations)}"
            case Assigned(generations=generations):
                ways = self._route(message.server, message.arbiter)
                return f"assigned {ways} {_generations(generations)}"
        return super().message(message)

    def run(self, run: PublicationRun) -> str:
        """See Wording: with the numbers of the publishers."""
        if not run.origins:
            return super().run(run)
        origins = ((each.source, each.sequences[0], each.sequences[-1]) for each in run.origins)
        return self.ranges(tuple(origins))

    def _owners(self, owners: tuple[Owner, ...]) -> str:
        return " ".join(f"{each.topic}:{self.name(each.server)}" for each in owners)

    def _part(self, each: Followed | Wanted, server: BrokerNumber) -> str:
        suffix = "" if each.part == server else f"/{self.name(each.part)}"
        return f"{each.topic}{suffix}"

    def _route(self, a: BrokerNumber, b: BrokerNumber) -> str:
        return f"{self.name(a)}>{self.name(b)}"


def _generations(generations: tuple[Generation, ...]) -> str:
    return " ".join(f"{each.topic}/{each.number}" for each in generations)


def _join_names(topics: tuple[int, ...]) -> str:
    return ",".join(map(str, topics)) or "none"
