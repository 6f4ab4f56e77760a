"""The lives of subscriptions: requests, starts, moves, losses of a client's memory, and ends."""

from brokerd.model.identity import ClientId
from brokerd.model.predicate import Predicate
from brokerd.protocols.definition import Promises
from brokerd.simulator.checks.losses import StateLosses
from brokerd.simulator.checks.notices import Gates
from brokerd.simulator.checks.streams import Publisher, Stream, StreamRegister, Subscription


class SubscriptionLives:
    """The keeper of the subscriptions of a run, and of the fences from which on they are owed."""

    def __init__(
        self, register: StreamRegister, promises: Promises, losses: StateLosses, gates: Gates
    ) -> None:
        self._register = register
        self._promises = promises
        self._losses = losses
        self._gates = gates

    def begin(
        self,
        client: ClientId,
        number: int,
        predicate: Predicate,
        log: int,
    ) -> Subscription:
        """Return a requested subscription, without streams.

        A client that moves requests its subscriptions again: an earlier loss may excuse what was
        published until they start at the new broker, and nothing later.

        Args:
            log: its number among all subscriptions.
        """
        subscription = Subscription(client, number, predicate, log, since=self._losses.count)
        subscription.closed = self._gates.closed_of(client, number)
        before = self._register.before.pop((client, number), None)
        if before is not None and before.predicate == predicate:
            subscription.before = before
        self._register.subscriptions[client, number] = subscription
        return subscription

    def start(self, client: ClientId, number: int) -> None:
        """Record that a client was notified of the start of a subscription.

        A broker with a loss has no record of expired subscriptions: it announces all publications
        until the start as lost.
        """
        register = self._register
        subscription = register.subscriptions.get((client, number))
        if subscription is not None and subscription.lost:
            self._losses.restart(subscription)
        if subscription is None or (subscription.started and not subscription.given_up):
            return
        subscription.started = True
        for publisher in register.publishers.values():
            stream = register.stream(subscription, publisher)
            if subscription.given_up:
                stream.restart()
                stream.absent = len(publisher.contents)
            stream.requested = len(publisher.contents)
            if stream.fence is None and not register.is_closed(subscription, publisher):
                stream.open(publisher)
            if subscription.before is not None:
                self._resume(subscription.before, stream, publisher)
            self._losses.excuse_lost(stream, publisher)
        if subscription.given_up and self._losses.has_lossy_home(client):
            self._losses.restart(subscription)
        subscription.given_up, subscription.before = False, None

    def _resume(self, before: Subscription, stream: Stream, publisher: Publisher) -> None:
        """Resume the stream of a client without memory behind its old position.

        Old deliveries may repeat, in part: a broker that has crashed meanwhile has lost the last
        acknowledgements. Announced gaps and notices need not be repeated. After a loss, the
        broker announces the gap to the process that it lost; a later process is owed none.
        """
        old = before.streams.get(publisher.name)
        if old is None:
            return
        stream.excused |= old.excused
        last = max([old.last, *old.got])  # with those of an earlier broker
        if before.is_restarted:
            last = max(last, old.lost_until)
        if stream.old_until >= 0:
            stream.old_until = max(stream.old_until, last)
        if old.fence is not None:
            stream.fence = stream.requested = max(old.fence, last)
        else:
            stream.requested = max(old.requested, last)

    def end(self, client: ClientId, number: int) -> None:
        """Record the end of a subscription, after which no delivery is owed or permitted."""
        register = self._register
        register.ended[client, number] = register.subscriptions.pop((client, number))

    def forget(self, client: ClientId) -> None:
        """Record a client's loss of memory, after which only its new requests count.

        A broker that stores for the client's broker may have lost its subscriptions.
        """
        register = self._register
        register.restarted[client] = None
        is_lost = self._losses.is_lost_elsewhere(client)
        for (name, number), subscription in list(register.subscriptions.items()):
            if name == client:
                self.end(name, number)
                before = subscription.before  # without a start since the last loss
                is_kept = subscription.started and not subscription.given_up
                if before is None and is_kept and not (subscription.lost or is_lost):
                    before = subscription
                if before is not None:
                    register.before[name, number] = before
        publisher = register.current.pop(client, None)
        if publisher is not None:
            publisher.is_over = True

    def drain(self, client: ClientId) -> None:
        """Record a client's request for its remaining deliveries, before it leaves the broker.

        Other owed deliveries are owed at the new broker of the client.
        """
        for (name, _), subscription in self._register.subscriptions.items():
            subscription.draining = subscription.draining or name == client

    def move(self, client: ClientId, successor: ClientId, *, whole: bool) -> None:
        """Record the move of a client to another broker, as `successor`.

        The client keeps its subscriptions. A subscription that ended at the new broker after a
        refusal is owed nothing more. Earlier deliveries must not repeat. With `whole`, nothing
        failed meanwhile and the old broker has delivered everything: the streams continue without a
        gap. Otherwise the streams restart, at the latest with the first publication after the start
        of the subscription at the new broker. Publications before the start at the old broker are
        not owed: that broker's streams may have passed them, if its start was the later one.
        """
        register = self._register
        self._losses.follow(client, successor)
        for (name, number), before in list(register.subscriptions.items()):
            if name != client:
                continue
            self.end(name, number)
            after = register.subscriptions.get((successor, number))
            if after is None:
                assert (successor, number) in register.ended, f"{successor} never had {number}"
                continue
            for publisher in register.publishers.values():
                self._continue_stream(
                    register.stream(before, publisher),
                    register.stream(after, publisher),
                    len(publisher.contents),
                    whole=whole,
                )

    def _continue_stream(
        self, before: Stream, after: Stream, published: int, *, whole: bool
    ) -> None:
        after.excused |= before.excused
        if not self._promises.order.is_of_sources:
            # A publication missing before the last delivered one may follow.
            after.got |= before.got
            if before.fence is not None:
                is_later = after.fence is not None and after.fence < before.fence
                after.fence = before.fence if whole or is_later else after.fence
            return
        after.had = before.last
        if not whole:
            after.requested = published
            if after.fence is not None:
                after.fence = max(after.fence, after.had, before.fence or 0)
            return
        after.requested = before.requested
        fence = after.had if before.at is not None else before.fence
        if fence is not None:
            after.fence = max(after.had, fence)

    def expire(self, client: ClientId, number: int) -> None:
        """Record the end of a subscription of a client that was away for too long."""
        subscription = self._register.subscriptions.get((client, number))
        if subscription is not None:
            subscription.given_up, subscription.before = True, None
        self._register.before.pop((client, number), None)

    def excuse_absence(self, client: ClientId, number: int) -> None:
        """Record that all publications so far may be lost to a subscription at another broker.

        The broker that the client has left ended the subscription, because the client was away for
        too long, before the new broker had the publications retained.
        """
        subscription = self._register.subscriptions.get((client, number))
        if subscription is not None:
            for publisher in self._register.publishers.values():
                self._register.stream(subscription, publisher).absent = len(publisher.contents)
