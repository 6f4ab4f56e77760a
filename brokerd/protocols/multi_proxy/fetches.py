"""Fetch requests of an access broker to the servers of its clients' topics.

Per server one Follow at a time names the topics, and one Get at a time requests new publications;
an answer is followed by the next Get, so that messages arrive as if they were pushed, and in
batches under load. With `get_wait_ns` 0 a Get stays at the server until there is something: nothing
is sent while nothing happens. A later Get replaces it, to name further topics, and to report
acknowledged positions. A Get or its answer is lost only with a session on its route, whose end
every access broker is notified of, and then repeats its Get.

Paper: [MP22] §2 (subscribe, get), §4 (the last message that a client got goes with its next get).
Deviates: an access broker is one subscriber for all of its clients; a get requests publications
after those that have arrived, and separately reports the acknowledged position.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer, StreamId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.multi_proxy.messages import (
    Answered,
    Follow,
    Following,
    Get,
    Lost,
    Merged,
    Messages,
    Wanted,
)
from brokerd.protocols.multi_proxy.parameters import MultiProxyParameters
from brokerd.protocols.multi_proxy.routes import ServerRoutes
from brokerd.protocols.multi_proxy.state import (
    FollowedServer,
    FollowedState,
    FollowedTopic,
    InFlightDelivery,
    OwnerTable,
    PendingSubscription,
)
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine

REPORTED: Final = "reported"
"""Purpose of the deadline at which acknowledged positions are reported, if no Get did meanwhile."""


class Fetches:
    """The followed topics of an access broker.

    Args:
        servers: all servers.
        owners: the server of each topic; an owner is found before its topic is followed.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        machine: EventMachine,
        servers: Sequence[BrokerNumber],
        owners: OwnerTable,
        routes: ServerRoutes,
        deadlines: DeadlineQueue[Any],
        parameters: MultiProxyParameters,
    ) -> None:
        self._broker = broker
        self._machine = machine
        self._owners = owners
        self._routes = routes
        self._deadlines = deadlines
        self._parameters = parameters
        self._is_patient = not parameters.get_wait_ns
        self._servers = {server: FollowedServer(server) for server in servers}
        self._incarnation = 0

    def begin(self, incarnation: int) -> None:
        """Begin with the subscriptions on disk; the servers receive a new Follow."""
        self._incarnation = incarnation
        for followed in self._servers.values():
            followed.is_stale = True
            self._follow(followed)

    # ------------------------------------------------------------ subscriptions

    def follow(self, topics: Sequence[int], beginning: PendingSubscription | None) -> bool:
        """Add a subscription to these topics.

        Return True if it waits for no server; else `on_following` yields it later.

        Args:
            beginning: receives the head of each topic, as soon as nothing later is missed; None if
                the servers had confirmed these topics before.
        """
        for followed, numbers in self._group_by_server(topics):
            is_new = False
            for number in numbers:
                if self._stream(followed.server, number) not in followed.topics:
                    self._add(followed, self._stream(followed.server, number))
                    is_new = True
                for topic in followed.parts(number):
                    if beginning is None:
                        topic.is_resumed = True
                    topic.followers += 1
            if beginning is not None:
                beginning.missing += 1
                followed.next.append((beginning, numbers))
            followed.is_stale = followed.is_stale or is_new or beginning is not None
            if self._incarnation:
                self._follow(followed)
        return beginning is not None and not beginning.missing

    def on_merged(self, peer: Peer, message: Merged) -> None:
        """Follow topics also at another owner.

        Raises:
            RemoteProtocolError: the owner is no server; the fault of the peer.
        """
        for number, server, _ in message.owners:
            if server not in self._servers:
                raise RemoteProtocolError(peer, f"broker {server} owns topic {number}")
            self._follow_also(number, server)

    def _follow_also(self, number: int, server: BrokerNumber) -> None:
        followers = [
            topic.followers
            for followed in self._servers.values()
            for topic in followed.parts(number)
        ]
        followed, stream = self._servers[server], self._stream(server, number)
        if followers and stream not in followed.topics:
            self._add(followed, stream).followers = max(followers)
            followed.is_stale = True
            self._follow(followed)

    def _add(self, followed: FollowedServer, stream: StreamId) -> FollowedTopic:
        topic = followed.topics[stream] = FollowedTopic(followed.server, stream)
        return topic

    def move(self, number: int, before: BrokerNumber, server: BrokerNumber) -> None:
        """Continue a topic and its parts at another server.

        The new server waits for a Follow of the topic, even if there is no follower any more.
        """
        old, new = self._servers[before], self._servers[server]
        moved = old.parts(number)
        stream = self._stream(server, number)
        own = new.topics.get(stream) or self._add(new, stream)
        own.is_resumed, own.followers = True, max((topic.followers for topic in moved), default=0)
        for topic in moved:
            del old.topics[topic.stream]
            topic.server = server
            new.topics[topic.stream] = topic
        waiting, old.next, old.pending = [*old.pending, *old.next], [], []
        for beginning, numbers in waiting:
            if number in numbers:
                new.next.append((beginning, (number,)))
                beginning.missing += 1
                numbers = tuple(each for each in numbers if each != number)
            if numbers:
                old.next.append((beginning, numbers))
            else:
                beginning.missing -= 1
        for followed in (old, new):
            followed.is_stale = True
        old.is_answered = True
        if self._incarnation:
            self._follow(old)
            self._follow(new)

    def request_again(self, number: int, server: BrokerNumber) -> None:
        """Repeat the Follow to a server that has more of a topic than at the last one.

        The server may also wait for a Follow of a topic without followers.
        """
        followed, stream = self._servers[server], self._stream(server, number)
        if stream not in followed.topics:
            self._add(followed, stream).is_resumed = True
        followed.is_stale = True
        self._follow(followed)

    def restate(self) -> None:
        """Repeat the Follow to all servers; a server has lost the followed topics."""
        for followed in self._servers.values():
            followed.is_stale = True
            self._follow(followed)

    def unfollow(self, topics: Sequence[int]) -> None:
        """Remove a subscription from these topics."""
        for followed in self._servers.values():
            for number in topics:
                for topic in followed.parts(number):
                    topic.followers -= 1
                    if not topic.followers:
                        del followed.topics[topic.stream]
                        followed.is_stale = True
            self._follow(followed)

    def _group_by_server(
        self, topics: Sequence[int]
    ) -> Iterator[tuple[FollowedServer, tuple[int, ...]]]:
        for server, followed in self._servers.items():
            numbers = self._owners.topics_of(server, topics)
            if numbers:
                yield followed, numbers

    def _follow(self, followed: FollowedServer) -> None:
        """Send a changed Follow, once the last one is answered."""
        if not followed.is_stale or not followed.is_answered:
            return
        number = followed.follow.number + 1 if followed.follow is not None else 1
        topics = tuple(sorted({topic.number for topic in followed.topics.values()}))
        followed.follow = Follow(followed.server, self._broker, self._incarnation, number, topics)
        followed.is_answered = followed.is_stale = False
        followed.pending, followed.next = followed.next, []
        self._routes.send(followed.follow)

    def on_following(self, peer: Peer, message: Following) -> Iterator[PendingSubscription]:
        """Take the answer to a Follow, and yield the subscriptions that wait for nothing more.

        Raises:
            RemoteProtocolError: the answer is to no Follow, or for other topics; the fault of the
                peer.
        """
        followed = self._servers.get(message.server)
        follow = followed.follow if followed is not None else None
        if followed is None or follow is None:
            raise RemoteProtocolError(peer, f"{message.server} answers without a request")
        if (message.incarnation, message.number) != (follow.incarnation, follow.number):
            return
        if followed.is_answered:
            self._routes.on_answer(message.server, Follow)
            return
        if tuple(dict.fromkeys(each.topic for each in message.topics)) != follow.topics:
            raise RemoteProtocolError(peer, f"broker {message.server} answers for other topics")
        followed.is_answered = True
        self._routes.on_answer(message.server, Follow)
        heads: dict[int, dict[StreamId, int]] = {}
        new = [number for number in follow.topics if self._begins(followed, number)]
        for each in message.topics:
            stream = self._stream(each.part, each.topic)
            heads.setdefault(each.topic, {})[stream] = each.head
            topic = self._find_or_add(followed, stream)
            if topic is not None and topic.after is None:
                topic.after = each.head if each.topic in new else each.done
            if topic is not None and each.part != followed.server:
                topic.last, topic.age = each.head, len(heads[each.topic]) - 1
        for other in message.elsewhere:
            stream = self._stream(other.part, other.topic)
            heads.setdefault(other.topic, {})[stream] = other.through
        requested, followed.pending = followed.pending, []
        for beginning, numbers in requested:
            for number in numbers:
                beginning.heads.update(heads.get(number, {}))  # none: it ended before it was said
            beginning.missing -= 1
            if not beginning.missing:
                yield beginning
        self._leave(followed, follow.topics)
        self._follow(followed)
        self._get(followed, again=self._is_patient)

    def _begins(self, followed: FollowedServer, number: int) -> bool:
        """Return True if only later publications of a topic are needed.

        This holds even if the server has this broker as an earlier follower, from elsewhere.
        """
        own = followed.topics.get(self._stream(followed.server, number))
        return own is not None and own.after is None and not own.is_resumed

    def _find_or_add(self, followed: FollowedServer, stream: StreamId) -> FollowedTopic | None:
        """Return a followed part that a server has answered with, which is added if new."""
        topic = followed.topics.get(stream)
        own = followed.topics.get(self._stream(followed.server, stream.publisher))
        if topic is None and own is not None:
            topic = self._add(followed, stream)
            topic.followers, topic.is_resumed = own.followers, True
        return topic

    def _leave(self, followed: FollowedServer, announced: Collection[int]) -> None:
        """Remove topics without followers, once the server has the present Follow."""
        for topic in [*followed.topics.values()]:
            if not topic.followers and topic.number in announced:
                del followed.topics[topic.stream]
                followed.is_stale = True

    # ------------------------------------------------------------ publications

    def done(self, delivery: InFlightDelivery) -> None:
        """Take the acknowledgement of a delivery."""
        topic = delivery.topic
        topic.close()
        followed = self._servers[topic.server]
        if topic.stream in followed.paused and self._room(topic):
            self._get(followed, again=True)
        self._report_later(followed)

    def _report_later(self, followed: FollowedServer) -> None:
        """Schedule a report of acknowledged positions, which the waiting Get does not have."""
        key = REPORTED, followed.server
        if self._is_patient and followed.is_fetching and key not in self._deadlines:
            self._deadlines.set(key, self._machine.now_ns + self._parameters.timeout_ns)

    def report(self, server: BrokerNumber) -> None:
        """Report acknowledged positions that the last Get does not have."""
        followed = self._servers[server]
        if followed.is_fetching and any(
            topic.done > followed.reported.get(stream, topic.done)
            for stream, topic in followed.topics.items()
        ):
            self._get(followed, again=True)

    def _room(self, topic: FollowedTopic) -> int:
        return max(0, self._parameters.home_window - topic.outstanding)

    def _get(self, followed: FollowedServer, *, again: bool = False) -> None:
        """Request new publications, unless that is under way."""
        if followed.is_fetching and not again:
            return
        wanted = tuple(
            Wanted(topic.stream.broker, topic.number, topic.done, topic.after, self._room(topic))
            for topic in self._topics_in_turn(followed)
            if topic.after is not None
        )
        followed.is_fetching = bool(wanted)
        if not wanted:
            return
        followed.fetch_number += 1
        followed.reported = {self._stream(each.part, each.topic): each.done for each in wanted}
        followed.paused = tuple(
            self._stream(each.part, each.topic) for each in wanted if not each.most
        )
        self._routes.send(
            Get(followed.server, self._broker, self._incarnation, followed.fetch_number, wanted)
        )

    def _topics_in_turn(self, followed: FollowedServer) -> Iterable[FollowedTopic]:
        """Return the topics to request.

        A later owner's part waits for the earlier owners' parts.
        """
        topics = followed.topics.values()
        lacking: dict[int, int] = {}
        for topic in topics if self._owners.are_in_turn else ():
            if (topic.after or 0) < topic.last:
                lacking[topic.number] = max(topic.age, lacking.get(topic.number, 0))
        if not lacking:
            return topics
        return [topic for topic in topics if topic.age >= lacking.get(topic.number, 0)]

    def on_messages(
        self, peer: Peer, message: Messages
    ) -> tuple[PublicationRun, InFlightDelivery] | None:
        """Return new publications of a topic to deliver; drop known ones, and those after a gap.

        The caller counts the deliveries to clients, and ends with `complete`.

        Raises:
            RemoteProtocolError: the run is malformed; the fault of the peer.
        """
        run, number = message.run, message.topic
        server = run.source.broker
        is_topic = server in self._servers and run.source == self._stream(server, number)
        if not is_topic or not run.origins:
            raise RemoteProtocolError(peer, f"{run.source} is not topic {number}")
        topic = self._followed(run.source)
        if topic is None or topic.after is None or run.first > topic.after + 1:
            return None
        rest = run.after(topic.after)
        if rest is None:
            return None
        return rest, self._take(topic, rest.first, rest.last, len(rest))

    def arrived(self, stream: StreamId) -> int:
        """Return the position through which everything of a followed stream has arrived."""
        topic = self._followed(stream)
        return topic.after or 0 if topic is not None else 0

    def lacks(self, heads: Mapping[StreamId, int]) -> bool:
        """Return True if publications of followed topics up to these heads have not arrived."""
        return any(
            head > self.arrived(stream) and self.follows(stream.publisher)
            for stream, head in heads.items()
            if stream.broker in self._servers
        )

    def _followed(self, stream: StreamId) -> FollowedTopic | None:
        """Return the followed part of a stream, at any server."""
        for followed in (self._servers[stream.broker], *self._servers.values()):
            if stream in followed.topics:
                return followed.topics[stream]
        return None

    def on_lost(self, peer: Peer, message: Lost) -> InFlightDelivery | None:
        """Return a gap of publications that the server has released without acknowledgement.

        The caller counts the deliveries of the gap to clients, and ends with `complete`.

        Raises:
            RemoteProtocolError: the lost runs are malformed; the fault of the peer.
        """
        followed = self._servers.get(message.server)
        if followed is None or not message.runs:
            raise RemoteProtocolError(peer, f"{message.server} has lost {message.runs[:1]}")
        position = message.first
        for run in message.runs:
            if run.position != position or run.first > run.last:
                raise RemoteProtocolError(peer, f"{run} is lost, at {position}")
            position = run.end + 1
        topic = followed.topics.get(self._stream(message.part, message.topic))
        if topic is None or topic.after is None or message.last <= topic.after:
            return None
        if message.first > topic.after + 1:
            return None
        return self._take(topic, topic.after + 1, message.last, 1)

    @staticmethod
    def _take(topic: FollowedTopic, first: int, last: int, count: int) -> InFlightDelivery:
        topic.after = last
        return topic.deliver(first, count)

    def complete(self, delivery: InFlightDelivery) -> None:
        """Take the end of a delivery to clients, some of which may not have acknowledged it."""
        delivery.open -= 1
        delivery.topic.close()
        self._report_later(self._servers[delivery.topic.server])

    def is_answer(self, peer: Peer, message: Answered) -> bool:
        """Return True for the end of an answer to the last Get.

        Raises:
            RemoteProtocolError: the sender is no server; the fault of the peer.
        """
        followed = self._servers.get(message.server)
        if followed is None:
            raise RemoteProtocolError(peer, f"{message.server} answers, and owns nothing")
        last = self._incarnation, followed.fetch_number
        return followed.is_fetching and (message.incarnation, message.number) == last

    def on_answered(self, message: Answered) -> None:
        """Take the end of the answer to the last Get, and send the next one."""
        followed = self._servers[message.server]
        followed.is_fetching = False
        self._routes.on_answer(message.server, Get)
        self._get(followed)

    # ------------------------------------------------------------ unanswered requests

    def follows(self, number: int) -> bool:
        """Return True if a subscription here needs a topic."""
        return any(followed.parts(number) for followed in self._servers.values())

    def awaits_follow(self, server: BrokerNumber) -> bool:
        """Return True if a server has not answered the last Follow."""
        followed = self._servers.get(server)
        return followed is not None and not followed.is_answered

    def awaits_get(self, server: BrokerNumber) -> bool:
        """Return True if a server has not answered the last Get, which may not wait for ever."""
        followed = self._servers.get(server)
        return followed is not None and followed.is_fetching and not self._is_patient

    def resend(self, server: BrokerNumber) -> None:
        """Repeat all unanswered requests to a server."""
        followed = self._servers.get(server)
        if followed is None:
            return
        if followed.follow is not None and not followed.is_answered:
            self._routes.send(followed.follow)
        if followed.is_fetching:
            self._get(followed, again=True)

    def prove(self, server: BrokerNumber) -> None:
        """Repeat the answered Follow to a server that is reachable again, if no Get is repeated.

        The server may have lost its log meanwhile: the request returns the mark of the log.
        """
        followed = self._servers.get(server)
        if followed is None or followed.follow is None:
            return
        if followed.is_answered and not followed.is_fetching:
            self._routes.send(followed.follow)

    def state(self, server: BrokerNumber, proxy: BrokerNumber | None) -> FollowedState:
        """Return the state about a server that is reached over a proxy, for people."""
        followed = self._servers[server]
        topics = {
            f"{stream.publisher} of {stream.broker}": topic.after
            for stream, topic in followed.topics.items()
        }
        return FollowedState(proxy, topics, followed.is_answered)

    def waiting(self) -> int:
        """Return the number of servers that have not answered a Follow."""
        return sum(not followed.is_answered for followed in self._servers.values())

    def undone(self) -> int:
        """Return the number of arrived publications that clients have not acknowledged."""
        return sum(
            topic.outstanding
            for followed in self._servers.values()
            for topic in followed.topics.values()
        )

    @staticmethod
    def _stream(server: BrokerNumber, number: int) -> StreamId:
        return StreamId(server, number, 0)
