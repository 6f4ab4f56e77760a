"""Clients of a simulated cluster that attach to another broker under the same name."""

from collections.abc import Sequence

from brokerd.client.broker_choice import Brokers
from brokerd.client.state import Home
from brokerd.model.identity import ClientId
from brokerd.simulator.world.clients import SimulatedClient
from brokerd.simulator.world.state import ClusterState
from brokerd.units import SECOND_NS


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
