"""The clients of a broker without state on disk: their state is at a storage.

A client that returns, to this broker or to another, is found at its storage, at the point that the
client has reached.

Paper: [GES] §1 (any broker serves any client), §4 (reconnecting clients).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import (
    Connect,
    Detach,
    Publish,
    Refused,
    Subscribe,
    Subscribed,
    Unsubscribe,
)
from brokerd.model.identity import BrokerNumber, ClientId, SourceId, StreamId
from brokerd.model.predicate import DecodeAttributes
from brokerd.model.publication import PublicationRun
from brokerd.protocols.ges_reliable.changes import Changes
from brokerd.protocols.ges_reliable.following import Followed, Following, Handed, stream_of
from brokerd.protocols.ges_reliable.heirs import Heirs, after_all
from brokerd.protocols.ges_reliable.messages import Begun, Key, Sequences, Wish
from brokerd.protocols.ges_reliable.parameters import GesReliableParameters
from brokerd.protocols.ges_reliable.puts import Puts
from brokerd.protocols.parts.clients.own_subscriptions import (
    OwnClient,
    OwnSubscription,
    OwnSubscriptions,
)
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.durability import Durability
from brokerd.protocols.parts.selection import RunSelection, match_run


@dataclass(slots=True, eq=False)
class RoamingClient(OwnClient):
    """A client.

    Attributes:
        generation: of the attachment to this broker; increases with every move to another broker.
        brought: the positions that the client reports for its subscriptions.
    """

    generation: int = 0
    brought: dict[int, dict[StreamId, int]] = field(default_factory=dict)


class RoamingClients(OwnSubscriptions[Handed]):
    """See ClientService.

    Args:
        storages: all storages; first the storage of this broker's unit.
        roots: by storage, the root of its epochs.
    """

    takes_sources = True

    def __init__(
        self,
        broker: BrokerNumber,
        disk: Durability,
        deadlines: DeadlineQueue[Any],
        parameters: GesReliableParameters,
        decode_attributes: DecodeAttributes,
        counters: dict[str, int],
        *,
        storages: Sequence[BrokerNumber],
        roots: Mapping[BrokerNumber, BrokerNumber],
        changes: Changes,
    ) -> None:
        super().__init__(broker, disk, deadlines, parameters, decode_attributes, counters)
        self._storages = storages
        self._changes = changes
        self._heirs = Heirs(changes, storages[0], roots, disk.machine, deadlines, parameters)
        self.crossings = self._heirs.crossings

    def use(self, following: Following, puts: Puts) -> None:
        """Take the parts that fetch for clients, and that store."""
        self._following = following
        self._heirs.use(following)
        self._puts = puts

    # ------------------------------------------------------------ subscriptions

    def _subscribe(self, client: OwnClient, message: Subscribe) -> None:
        roaming = _roaming(client)
        brought = roaming.brought.get(message.number, {})
        found = self._stored_at(brought)
        if found is None and brought:
            names = ", ".join(str(stream.broker) for stream in brought)
            reason = f"{client.name} was stored for at broker {names}, which is no storage any more"
            self._machine.send(client.name, Refused("subscribe", message.number, reason, False))
            return
        local = Followed(client.name, message.number, message.predicate, client.session)
        local.generation = roaming.generation
        local.brought = {stream.broker: had for stream, had in brought.items()}
        client.subscriptions[local.number] = local
        self._heirs.drop_pending_end(local.key)
        self._machine.send(client.name, Subscribed(local.number, "pending"))
        if found is not None:
            local.earlier = [stream.broker for stream in brought if stream.broker in self._storages]
            self._begin_at(client, local, *found)
        else:
            self._claim_anywhere(client, local)

    def _stored_at(self, brought: Mapping[StreamId, int]) -> tuple[BrokerNumber, int] | None:
        """Return a storage that stores or has stored for a subscription, with the position.

        Any of these storages suffices: the answer names the successor storage, or the previous
        storage.
        """
        here = {stream.broker: had for stream, had in brought.items()}
        for storage in here:
            had = self._heirs.had_at(storage, here) if storage in self._storages else None
            if had is not None:
                return storage, had
        return None

    def _claim_anywhere(self, client: OwnClient, local: Followed) -> None:
        """Request a subscription at all storages; begin at this unit's storage if all lack it.

        The client may have been elsewhere before without an answer, or may have lost its memory.
        After that, no storage takes requests of an earlier attachment. Of two storages with the
        subscription, one is the successor. A storage that has joined since is asked if it is a
        successor.
        """
        asked: dict[BrokerNumber, None] = {}
        answers: dict[BrokerNumber, Begun] = {}

        def ask(storage: BrokerNumber) -> None:
            asked[storage] = None
            wish = Wish(local.key, local.generation, local.predicate, claims=True)
            self._changes.tell(storage, wish, partial(claimed, storage))

        def claimed(storage: BrokerNumber, begun: Begun) -> None:
            answers[storage] = begun
            ends = self._heirs.is_pending_end(local)
            if local.is_over and not ends:
                return
            if begun.heir is not None and begun.heir not in asked:
                ask(begun.heir)
                if ends:
                    wish = Wish(local.key, local.generation, None)
                    self._changes.tell(begun.heir, wish, lambda begun: None)
            if len(answers) < len(asked):
                return
            if ends:
                self._heirs.drop_pending_end(local.key)
                return
            local.earlier = [each for each in asked if answers[each].heir is not None]
            if any(answer.is_gone for answer in answers.values()):
                # It is known where its client has gone, and begins nowhere anew.
                self._on_begun(client, local, Begun(local.key, None))
                return
            known = [each for each in asked if answers[each].after is not None]
            first = min(known, key=lambda each: answers[each].heir is None, default=None)
            if first is not None:
                local.storage = first
                found = answers[first]
                assert found.after is not None, f"{first} has no {local}"
                had = self._heirs.had_at(first, local.brought) or 0
                self._on_begun(client, local, found._replace(after=max(found.after, had)))
            else:
                self._begin_at(client, local, self._storages[0], None)

        if len(self._storages) == 1:
            self._begin_at(client, local, self._storages[0], None)
            return
        for storage in self._storages:
            ask(storage)

    def _begin_at(
        self,
        client: OwnClient,
        local: Followed,
        storage: BrokerNumber,
        had: int | None,
        *,
        claims: bool = False,
    ) -> None:
        local.storage = storage
        wish = Wish(local.key, local.generation, local.predicate, had, claims)

        def begun(answer: Begun) -> None:
            is_behind = had is not None and answer.after is not None and had < answer.after
            is_unknown = claims and answer.after is None and answer.heir is None
            if local.is_over:
                self._on_begun(client, local, answer)
            elif answer.after is not None and answer.before not in (None, storage):
                self._ask_before(client, local, answer, answer.before)
            elif (is_behind and answer.before is None) or is_unknown:
                # It has moved here, and the previous storage has everything before.
                local.storage = None
                self._claim_anywhere(client, local)
            else:
                self._on_begun(client, local, answer)

        self._changes.tell(storage, wish, begun)

    def _ask_before(
        self, client: OwnClient, local: Followed, begun: Begun, before: BrokerNumber
    ) -> None:
        """Ask the previous storage before a subscription continues at its successor."""
        storage, had = local.storage, self._heirs.had_at(before, local.brought)
        local.earlier.append(before)

        def answered(answer: Begun) -> None:
            if answer.after is not None and not local.is_over:
                local.storage = before
                after = max(answer.after, had or 0)
                self._on_begun(client, local, answer._replace(after=after))
            elif local.is_over:
                self._on_begun(client, local, begun)
            elif answer.heir == storage:
                self._heirs.settle(local)
                self._on_begun(client, local, begun)
            else:
                local.storage = None
                self._claim_anywhere(client, local)

        wish = Wish(local.key, local.generation, local.predicate, had, claims=True)
        self._changes.tell(before, wish, answered)

    def _on_begun(self, client: OwnClient, local: Followed, begun: Begun) -> None:
        """Begin a subscription at its storage, or ask the successor storage."""
        if local.is_over:
            self._heirs.on_begun_over(local, begun)
            return
        after, heir = begun.after, begun.heir
        if after is None and heir is not None:
            had = self._heirs.had_at(heir, local.brought)
            self._begin_at(client, local, heir, had, claims=had is None)
            return
        if after is None:
            del client.subscriptions[local.number]
            local.is_over = True
            reason = f"{client.name} has attached to another broker since"
            self._machine.send(client.name, Refused("subscribe", local.number, reason, False))
            return
        assert local.storage is not None, f"{local} begins nowhere"
        local.begins_after = {stream_of(local.storage): after}
        local.had_of = begun.had_of
        self._begin_one(client, local)
        self._following.begin(local, after)
        self._heirs.hand_over(local, heir, begun.until)

    def change(
        self, storages: Sequence[BrokerNumber], roots: Mapping[BrokerNumber, BrokerNumber]
    ) -> None:
        """Take new storages and roots.

        Another storage may serve this broker's unit from now on.
        """
        self._storages = storages
        self._heirs.change(storages[0], roots)
        for client in self._clients.values():
            for local in map(_followed, client.subscriptions.values()):
                if local.started and local.heir is None:
                    self._heirs.hand_over(local)

    # ------------------------------------------------------------ deliveries and ends

    def _begins_after(self, local: OwnSubscription) -> tuple[tuple[StreamId, int], ...]:
        return tuple(local.begins_after.items())

    def hand_out(self, run: PublicationRun, entry: Handed) -> None:
        """See OwnSubscriptions; delivers only publications that were not forwarded before."""
        wanted = match_run(self.memo, run, run.source.broker)
        for those, part in RunSelection(run).stretches(wanted):
            by_client: dict[tuple[ClientId, int, int, Sequences], list[OwnSubscription]] = {}
            for local in map(_followed, those):
                if local.storage == run.source.broker:
                    had = local.handed if local.handed >= part.first else 0
                    last = part.last if local.until is None else min(local.until, part.last)
                    about = local.client, had, last, local.had_of
                    by_client.setdefault(about, []).append(local)
            for (name, had, last, had_of), locals_ in by_client.items():
                lacked = part.after(had) if had else part
                lacked = lacked.up_to(last) if lacked is not None else None
                lacked = beyond(lacked, dict(had_of)) if lacked is not None else None
                if lacked is not None:
                    entry.open += 1
                    self.windows.deliver(name, lacked, tuple(locals_), (entry,))

    def on_unsubscribe(self, name: ClientId, message: Unsubscribe) -> None:
        """See ClientService; any storage may have a subscription that this broker has not."""
        client = self._connected_client(name, "Unsubscribe")
        number, session = message.number, client.session
        if number < 1:
            raise RemoteProtocolError(name, f"there is no subscription {number}")
        found = client.subscriptions.get(number)

        def answer() -> None:
            self._answer_ended(client, session, number)

        if found is not None:
            self._end(client, [found], answer)
            return
        self._end_everywhere(_roaming(client), number, answer)

    def on_detach(self, name: ClientId, message: Detach) -> None:
        """See ClientService; ends the client's subscriptions at all storages."""
        client = self._connected_client(name, "Detach")
        client.leaving, session = True, client.session

        def leave() -> None:
            client.drains = client.session == session
            self._leave(client)

        over = [*client.subscriptions.values()]
        for local in map(_followed, over):
            self._following.stop(local)
            if local.storage is None:
                self._heirs.add_pending_end(local)
        super()._end(client, over, lambda: None, drain=message.drain)
        self._end_everywhere(_roaming(client), 0, leave)

    def _end_everywhere(self, client: RoamingClient, number: int, then: Callable[[], None]) -> None:
        """End a subscription, or with 0 all of a client, at all storages."""
        ended = after_all(len(self._storages), then)
        for storage in self._storages:
            wish = Wish(Key(client.name, number), client.generation, None)
            self._changes.tell(storage, wish, ended)

    def _end(
        self,
        client: OwnClient,
        over: Sequence[OwnSubscription],
        then: Callable[[], None],
        *,
        drain: bool = False,
    ) -> None:
        """See OwnSubscriptions; the end is durable at the storage."""
        for local in map(_followed, over):
            self._following.stop(local)
        super()._end(client, over, lambda: None, drain=drain)
        if not over:
            then()
            return
        ended = after_all(len(over), then)
        for local in map(_followed, over):
            if not local.started:
                self._heirs.add_pending_end(local)
            if local.storage is None:
                self._end_everywhere(_roaming(client), local.number, ended)
                continue
            local.ended = ended
            if local.started:
                self._heirs.end(local, Begun(local.key, 0, local.heir))

    def _rows_over(self, key: str) -> Sequence[Any]:
        """See OwnSubscriptions; this broker stores nothing on disk."""
        return ()

    def _on_done(self, entry: Handed) -> None:
        self._following.done(entry)

    # ------------------------------------------------------------ sessions

    def _new_client(self, name: ClientId) -> OwnClient:
        return RoamingClient(name)

    def _resume(self, client: OwnClient, message: Connect) -> None:
        super()._resume(client, message)
        roaming = _roaming(client)
        roaming.generation = message.incarnation
        roaming.brought = {number: dict(seen) for number, seen in message.resume if seen}
        if client.source is not None:
            self._puts.come(client.source, message.next_sequence - 1)

    def _on_gone(self, client: OwnClient) -> None:
        """See ClientService; the storage has everything that the client's return requires."""
        for local in map(_followed, client.subscriptions.values()):
            local.is_over = True
            self._following.stop(local)
            if local.started:
                self.started -= 1
                self._index.remove(local)
        self.memo.forget()
        client.subscriptions.clear()
        super()._on_gone(client)
        if client.source is not None:
            self._puts.gone(client.source)

    # ------------------------------------------------------------ publications

    def _publish(self, client: OwnClient, message: Publish) -> None:
        run = message.run
        self.check_run(run, client.name)
        client.submitted = max(client.submitted, run.last)
        self._puts.put(run)
        self.tell_done(client, self._puts.done(run.source))

    def tell_stored(self, source: SourceId) -> None:
        """Report the stored publications to a publisher at this broker."""
        for client in self._clients.values():
            if client.source == source:
                self.tell_done(client, self._puts.done(source))

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """See OwnSubscriptions; nothing is stored here."""


def beyond(run: PublicationRun, had_of: Mapping[SourceId, int]) -> PublicationRun | None:
    """Return the publications of a stream's run above these numbers of their sources."""
    if not had_of:
        return run
    origins = ((each.source, number) for each in run.origins for number in each.sequences)
    found = [
        place for place, (source, number) in enumerate(origins) if number > had_of.get(source, 0)
    ]
    return run.select(found) if found else None


def _roaming(client: OwnClient) -> RoamingClient:
    assert isinstance(client, RoamingClient), f"{client} keeps no generation"
    return client


def _followed(local: OwnSubscription) -> Followed:
    assert isinstance(local, Followed), f"{local} is not stored for"
    return local
