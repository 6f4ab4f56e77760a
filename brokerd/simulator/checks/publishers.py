"""Publishers of a run: their sources, their returns, and the acknowledgements that they receive."""

from brokerd.model.identity import ClientId, SourceId
from brokerd.simulator.checks.deliveries import Obligations
from brokerd.simulator.checks.gaps import GapJudge
from brokerd.simulator.checks.losses import StateLosses
from brokerd.simulator.checks.streams import Publisher, StreamRegister
from brokerd.simulator.checks.violations import Violations


class PublisherJudge:
    """The judge of sources and acknowledgements.

    Attributes:
        is_owed_everywhere: an acknowledgement means that every owed subscription has the
            publication; otherwise it means only that the publication is on disk.
    """

    def __init__(
        self,
        register: StreamRegister,
        obligations: Obligations,
        losses: StateLosses,
        gaps: GapJudge,
        violations: Violations,
    ) -> None:
        self._register = register
        self._obligations = obligations
        self._losses = losses
        self._gaps = gaps
        self._violations = violations
        self.is_owed_everywhere = True

    def connect(self, client: ClientId, source: SourceId) -> None:
        """Judge the source that a client was notified of."""
        publisher = self._register.publisher(client)
        publisher.in_transit.clear()
        if publisher.given_up:
            self._restore(publisher)
        holder = self._register.by_source.setdefault(source, publisher)
        if holder is not publisher:
            subject = f"{source} was given to {holder.client} and to {client}"
            self._violations.add("identity", subject)
        publisher.source = source
        self._name_earlier(publisher, source)

    def _name_earlier(self, publisher: Publisher, source: SourceId) -> None:
        """Set the sources of a client's earlier lives that ended without a known source."""
        register = self._register
        lives = [each for each in register.publishers.values() if each.client == publisher.client]
        for place, earlier in enumerate(reversed(lives[: lives.index(publisher)]), 1):
            if earlier.source is None:
                earlier.source = source._replace(incarnation=source.incarnation - place)
                register.by_source.setdefault(earlier.source, earlier)

    def give_up(self, client: ClientId) -> None:
        """Record that a broker, after a crash, no longer waits for a publisher."""
        self._register.publisher(client).given_up = True

    def _restore(self, publisher: Publisher) -> None:
        publisher.given_up = False
        for subscription in self._register.subscriptions.values():
            stream = self._register.stream(subscription, publisher)
            if stream.old_until < 0:
                stream.old_until = len(publisher.contents)

    def acknowledge(self, client: ClientId, sequence: int) -> None:
        """Judge an acknowledgement; owed subscriptions, or the log, must have the publication."""
        publisher = self._register.current[client]
        publisher.acknowledged[sequence] = None
        if sequence in publisher.in_transit:
            self._losses.take(publisher, sequence)
        home = self._register.homes.get(client, -1)
        if publisher.source is not None:
            home = self._losses.disk_view.keeper_of(publisher.source, sequence, home)
            self._gaps.judge_late(publisher, publisher.source, sequence)
        publisher.kept_at[sequence] = home
        if not self.is_owed_everywhere:
            return
        for subscription in self._register.subscriptions.values():
            if not self._obligations.has(subscription, publisher, sequence):
                self._violations.add(
                    "acknowledged",
                    f"{client} received the acknowledgement of {sequence}, "
                    f"but {subscription.client}/{subscription.number} lacks it",
                )
