"""Moves of simulated clients to another broker, step by step or with a new attachment.

Earlier publications complete first. Then the client attaches to the new broker and repeats its
subscriptions there. After all have started, the old broker delivers its remaining publications, up
to a last subscription that marks the moment, and the client detaches from the old broker. Only then
the deliveries of the new broker reach the application. If the old broker is unreachable at this
time, the client continues without the remaining publications, and the old broker releases them at
the next contact, as after its linger.
"""

from collections.abc import Callable, Sequence

from brokerd.client.broker_choice import Brokers
from brokerd.client.state import Home
from brokerd.model.identity import ClientId
from brokerd.simulator.world.clients import SimulatedClient
from brokerd.simulator.world.state import ClusterState
from brokerd.units import SECOND_NS


class ClientMove:
    """The move of one client.

    Args:
        make_successor: creates the same client at the new broker, which dials.
        on_drain: called before the request for the remaining publications of the old broker.
        on_over: called once, after the detachment from the old broker and before any delivery of
            the new broker reaches the application, with the old client, the new client, and True if
            the old broker has delivered everything.
        on_arrived: called once, after the move.

    Attributes:
        old: the client at its old broker.
        new: the client at its new broker, once created.
        is_over: the move is complete.
    """

    def __init__(
        self,
        old: SimulatedClient,
        make_successor: Callable[[SimulatedClient], SimulatedClient],
        on_drain: Callable[[], None],
        on_over: Callable[[SimulatedClient, SimulatedClient, bool], None],
        on_arrived: Callable[[], None],
    ) -> None:
        self.old = old
        self.new: SimulatedClient | None = None
        self.is_over = False
        self._make_successor = make_successor
        self._on_drain = on_drain
        self._on_ended = on_over
        self._on_arrived = on_arrived
        self._attached = False
        self._marked_by = 0
        self._drains = False
        old.on_change = self.advance

    def advance(self) -> None:
        """Perform every step that is possible now."""
        old = self.old
        if self.is_over or len(old.core.outgoing):
            return
        if self.new is None:
            self.new = self._make_successor(old)
            self.new.on_change = self.advance
        new = self.new
        self._attached = self._attached or new.core.attached
        subscriptions = new.core.subscriptions
        if not self._attached or any(n not in new.started_numbers for n in subscriptions):
            return
        if old.detached or not old.core.attached:
            self._continue_without(old, new)
            return
        if self._marked_by and self._marked_by not in old.core.subscriptions:
            self._marked_by = 0  # the marker was refused
        if old.core.subscriptions and not self._marked_by:
            self._marked_by = old.mark()
        if not self._drains and (not self._marked_by or self._marked_by in old.started_numbers):
            self._drains = True
            self._on_drain()
            old.detach(drain=True, through=new.core.start_positions())

    def _continue_without(self, old: SimulatedClient, new: SimulatedClient) -> None:
        self.is_over = True
        self._on_ended(old, new, old.detached)
        new.take_over(old)
        if not old.detached:
            old.detach()
        self._on_arrived()


class ClientTransfers:
    """The transfers of clients, by the author of a story or by a redirect.

    Attributes:
        redirected: number of clients that followed a redirect.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self.redirected = 0

    @property
    def are_free(self) -> bool:
        """True if a client may leave for another broker with any requests."""
        return self._state.definition.promises.leaves_freely

    def reattach(self, client: ClientId, broker: str) -> None:
        """Attach a client to another broker under the same name, without notice to the old broker.

        All subscriptions of the client have started once, and no request is unanswered, unless
        clients of the protocol leave freely.
        """
        self._state.note(f"reattach {client} {broker}")
        number = self._state.topology.number_of(broker)
        self._state.checker.client_added(client, number)
        self._state.clients[client].move_to(self._home(broker), number)

    def on_redirected(self, client: SimulatedClient, addresses: Sequence[str]) -> None:
        """Follow a redirect to the first present broker, if free of cost.

        A client stays if all brokers of an old redirect have been removed since.
        """
        core, state = client.core, self._state
        if core.attachment.home is None:
            core.move_to(self._home(state.brokers[client.broker].name))
        here = [each for each in addresses if int(each) in state.graph.present]
        here = [each for each in here if int(each) not in state.removed]
        begun = all(each in client.started_numbers for each in core.subscriptions)
        waits = core.subscriptions.ending or not begun
        if (
            client.is_moving
            or not core.can_follow_redirect
            or (waits and not core.attachment.leaves_freely)
        ):
            return
        if client.brokers is None:
            all_there_are = [str(each) for each in state.graph.present]
            client.brokers = Brokers([str(client.broker)], all_there_are)
        client.brokers.address = str(client.broker)
        if client.brokers.on_redirect(here, state.schedule.now_ns / SECOND_NS):
            self.redirected += 1
            self.reattach(client.name, state.brokers[int(client.brokers.address)].name)

    def _home(self, broker: str) -> Home:
        """Return the client's view of its new broker."""
        promises = self._state.definition.promises
        return Home(
            broker,
            "",
            self._state.protocol,
            may_lose=not promises.exactly_once,
            resumes_elsewhere=promises.resumes_elsewhere,
            leaves_freely=promises.leaves_freely,
        )
