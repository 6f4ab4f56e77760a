"""The clients of a simulated cluster: their creation, their requests, and their end."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random

from brokerd.client.core import ClientCore
from brokerd.client.state import Positions
from brokerd.model.client_messages import Refused
from brokerd.model.identity import ClientId
from brokerd.model.predicate import NOTHING, Predicate
from brokerd.model.predicate_text import parse_predicate
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.client_transfers import ClientMove, ClientTransfers
from brokerd.simulator.world.clients import ClientObserver, SimulatedClient
from brokerd.simulator.world.consumers import Redeliveries, SimulatedConsumer
from brokerd.simulator.world.state import ClusterState


class ClientPopulation:
    """The maker of clients, and the keeper of their requests.

    Attributes:
        observer: receives the observations of each further client.
        consumers: clients without state, each with its number of uncommitted publications.
        redeliveries: the permitted redeliveries to consumers.
        held: moving clients that withhold their deliveries from the application.
        resumed: number of clients that returned with an older token.
    """

    def __init__(
        self, state: ClusterState, transfers: ClientTransfers, observer: ClientObserver
    ) -> None:
        self._state = state
        self._transfers = transfers
        self.observer = observer
        self.held: dict[ClientId, None] = {}
        self._predicates: dict[str, Predicate] = {}
        self._requests: dict[ClientId, list[Predicate]] = {}
        self._forgot: dict[ClientId, int] = {}
        self.resumed = 0
        self.consumers: dict[ClientId, int] = {}
        self.redeliveries = Redeliveries()

    def client(self, name: ClientId, broker: str, publishes: bool = False) -> SimulatedClient:
        """Return the client with this name; a new client is created and dials."""
        client = self._state.clients.get(name)
        return client if client is not None else self.add(name, broker, publishes)

    def add(
        self, name: ClientId, broker: str, publishes: bool, core: ClientCore | None = None
    ) -> SimulatedClient:
        """Add a client, which dials its broker."""
        state = self._state
        number = state.topology.number_of(broker)
        make: Callable[..., SimulatedClient] = SimulatedClient
        if name in self.consumers:
            make = partial(
                SimulatedConsumer,
                uncommitted=self.consumers[name],
                redeliveries=self.redeliveries,
            )
            core = core or SimulatedConsumer.make_core(name)
        client = make(name, number, state.network, state.random, self.observer, publishes, core)
        client.take_after_ns = int(state.own_clocks)
        if state.oracle.promises.gaps and name not in self.consumers:
            client.tokens = deque(maxlen=8)
        state.clients[name] = client
        state.network.endpoints[name] = client
        state.checker.client_added(name, number)
        client.on_refused = partial(self._on_refused, client)
        client.on_redirected = partial(self._transfers.on_redirected, client)
        client.dial()
        return client

    def subscribe(self, client: SimulatedClient, predicate: str | Predicate) -> int:
        """Request a subscription; return its number."""
        wanted = self._parse(predicate) if isinstance(predicate, str) else predicate
        number = client.subscribe(wanted)
        self._requests.setdefault(client.name, []).append(wanted)
        self._state.oracle.on_subscribed(client.name, number, wanted)
        text = predicate if isinstance(predicate, str) else ""
        self._state.note(f"subscribe {client.name}/{number} {text}")
        return number

    def publish(self, publisher: SimulatedClient, contents: Sequence[tuple[bytes, bytes]]) -> int:
        """Publish (attribute blob, payload) pairs as one run; return the first sequence number."""
        first = publisher.publish(contents)
        for sequence, (blob, payload) in enumerate(contents, first):
            self._state.oracle.published(publisher.name, sequence, blob, payload)
        self._state.note(f"publish {publisher.name} {first}-{first + len(contents) - 1}")
        return first

    def unsubscribe(self, client: ClientId, number: int = 1) -> None:
        """End a subscription of a client."""
        self._state.oracle.on_unsubscribed(client, number)
        self._state.note(f"unsubscribe {client}/{number}")
        self._state.clients[client].unsubscribe(number)

    def detach(self, client: ClientId) -> None:
        """Detach a client for good; all its publications must be complete."""
        detached = self._state.clients[client]
        for number in detached.core.subscriptions:
            self._state.oracle.on_unsubscribed(client, number)
        self._state.note(f"detach {client}")
        detached.detach()

    def forget(self, client: ClientId, keeps: int | None = None) -> SimulatedClient:
        """Restart a client's process without its memory, and repeat its requests.

        Args:
            keeps: number of requests to repeat, from the first request on; None for all.
        """
        state = self._state
        old = state.clients[client]
        wanted = self._requests.get(client, [])[:keeps]
        token = self._older_token(old)
        state.note(f"forget {client} {len(wanted)}")
        old.leave()
        self._forgot[client] = self._forgot.get(client, 1) + 1
        state.oracle.on_memory_loss(client)
        counts_anew = old.publishes or self._transfers.are_free
        core = ClientCore(
            client,
            publishes=old.publishes,
            incarnation=1 if counts_anew else old.core.attachment.incarnation,
            instance=b"%d" % self._forgot[client],
            mode="transactional" if client in self.consumers else "automatic",
        )
        self._requests[client] = []
        new = self.add(client, state.brokers[old.broker].name, old.publishes, core)
        for predicate in wanted:
            number = self.subscribe(new, predicate)
            new.core.progress.begin_after(number, token.get(number, ()))
        return new

    def move(
        self,
        client: ClientId,
        broker: str,
        over: Callable[[ClientId, bool], bool],
        arrived: Callable[[], None] = lambda: None,
    ) -> ClientMove:
        """Move a client to another broker, under another name.

        Args:
            over: called at the end of the move with the new name, and True if the old broker has
                delivered everything; returns True if the client's streams must continue without a
                gap.
            arrived: called when the client has received its kept publications.
        """
        state = self._state
        name = f"{client.partition('-')[0]}.-{broker}"

        def make(old: SimulatedClient) -> SimulatedClient:
            core = old.core.successor()
            new = self.add(name, broker, old.publishes, core)
            for number, predicate in core.subscriptions.predicates.items():
                state.oracle.on_subscribed(name, number, predicate)
            self._requests[name] = self._requests.get(old.name, [])
            self.held[name] = None
            new.is_moving = True
            return new

        def is_over(old: SimulatedClient, new: SimulatedClient, all_delivered: bool) -> None:
            state.note(f"moved {old.name} {new.name} {all_delivered}")
            del self.held[new.name]
            new.is_moving = False
            state.oracle.on_moved(old.name, new.name, whole=over(new.name, all_delivered))

        state.note(f"move {client} {name}")
        state.clients[client].is_moving = True
        move = ClientMove(
            state.clients[client],
            make,
            lambda: state.oracle.lives.drain(client),
            is_over,
            arrived,
        )
        move.advance()
        return move

    def _older_token(self, client: SimulatedClient) -> Mapping[int, Positions]:
        """Return older positions as the token of a restarted process, in half of the cases.

        Only if the protocol reports released publications to clients that return with a token.
        """
        random = Random(f"token of {client.name} at {self._state.schedule.now_ns}")
        if not client.tokens or random.random() < 0.5:
            return {}
        self.resumed += 1
        return random.choice(client.tokens)

    def _on_refused(self, client: SimulatedClient, refused: Refused) -> None:
        """Accept a refusal if the client has too many subscriptions or lost its memory."""
        number, most = refused.number, self._state.parameters.client_subscriptions
        if refused.request != "subscribe" or (number <= most and client.name not in self._forgot):
            raise InvariantViolated("refused", f"{client.name}: {refused}")
        if client.core.subscriptions.predicates.get(number) == NOTHING:
            if client.name not in self._forgot:
                raise InvariantViolated("refused", f"{client.name} cannot move: {refused}")
            client.unsubscribe(number)  # the client retries with the next number
            return
        if number in client.core.subscriptions:
            self.unsubscribe(client.name, number)

    def _parse(self, text: str) -> Predicate:
        predicate = self._predicates.get(text)
        if predicate is None:
            predicate = self._predicates[text] = parse_predicate(text)
        return predicate
