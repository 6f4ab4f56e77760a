"""Changes of the topology file of a running broker: joins, departures, and changes of roles."""

from collections.abc import Callable, Mapping

from brokerd.config import BrokerConfig
from brokerd.errors import ConfigError, ControlError
from brokerd.model.identity import BrokerNumber
from brokerd.model.operator_acts import CHANGE_TOPOLOGY, OperatorAct
from brokerd.overlay.topology import Topology
from brokerd.protocols.interface import Event, OverlayChanged, TopologyGrown, TopologyShrunk
from brokerd.protocols.registry import definition_of, parameters_on


def topology_change(deployment_id: str, topology: Topology) -> OperatorAct:
    """Return the act that changes the topology of a deployment."""
    changes = len(topology.joined) + len(topology.left)
    return OperatorAct(deployment_id, CHANGE_TOPOLOGY, topology.content_digest(), changes)


class Surroundings:
    """The surrounding brokers of a broker, kept up to date.

    Attributes:
        topology: the topology as last read.
        parameters: parameters of the protocol, from the topology.
        names: name of each broker that sessions are possible with, by number.
        addresses: listening addresses of these brokers.
    """

    def __init__(
        self,
        config: BrokerConfig,
        read: Callable[[], Topology],
    ) -> None:
        self._config = config
        self._read = read
        self.topology = read()
        self.parameters = parameters_on(self.topology, config.protocol, config.topology_file)
        self.number = self.topology.number_of(config.broker)
        self.names = self._near(self.topology)
        self.addresses = self._addresses(self.topology, self.names)

    def reload(self, check: Callable[[OperatorAct], None]) -> list[Event]:
        """Read the file again; return the events for the core.

        Args:
            check: raises ControlError if the authority has not signed the change.

        Raises:
            ControlError: of kind user: the change is not signed, or the new topology does not
                result from the old by changes that this protocol permits at run time; nothing has
                changed here then.
        """
        before = self.topology
        try:
            after = self._read()
        except ConfigError as error:
            raise ControlError("user", str(error)) from error
        check(topology_change(self._config.deployment_id, after))
        if not after.follows(before):
            raise ControlError(
                "user",
                f"{self._config.topology_file}: brokers can only join, leave, and change what they "
                "are in the overlay; anything else needs a new deployment",
            )
        definition = definition_of(self._config.protocol)
        members = len(after.joined) + len(after.left) > len(before.joined) + len(before.left)
        roles = after.has_other_roles(before)
        promises = definition.promises
        if (members and not promises.members_may_change) or (
            roles and not promises.roles_may_change
        ):
            raise ControlError(
                "user", f"no broker joins, leaves or changes in a {self._config.protocol} overlay"
            )
        near = self._near(after)
        try:
            addresses = self._addresses(after, near)
        except ConfigError as error:
            raise ControlError("user", str(error)) from error
        events = self._changes(after, near)
        self.names.clear()
        self.names.update(near)
        self.topology = after
        self.addresses.clear()
        self.addresses.update(addresses)
        return events

    def discrepancies(self) -> list[str]:
        """Return the differences of the topology file from the topology in use, in words."""
        try:
            found = self._read()
        except ConfigError as error:
            return [f"its topology file cannot be used: {error}"]
        if found.content_digest() == self.topology.content_digest():
            return []
        return ["its topology file has changed, and it has not read it again"]

    def _changes(self, after: Topology, near: Mapping[BrokerNumber, str]) -> list[Event]:
        """Return the events that notify a core of changed links, or of a changed section."""
        before = self.topology
        if after.sections != before.sections:
            kind = definition_of(self._config.protocol).kind
            return [OverlayChanged(after.overlay(kind))]
        events: list[Event] = []
        for name in after.left[len(before.left) :]:
            if (number := after.brokers.index(name)) in self.names:
                events.append(TopologyShrunk(number))
        for joined in after.joined[len(before.joined) :]:
            if (number := after.brokers.index(joined.name)) in near:
                events.append(TopologyGrown(number, after.brokers.index(joined.at)))
        return events

    def _near(self, topology: Topology) -> dict[BrokerNumber, str]:
        near = definition_of(self._config.protocol).surroundings(topology, self.number)
        return {number: topology.brokers[number] for number in near}

    def _addresses(
        self, topology: Topology, names: dict[BrokerNumber, str]
    ) -> dict[BrokerNumber, str]:
        joined = {row.name: row.address for row in topology.joined if row.address}
        known = {**joined, **self._config.addresses}
        missing = [name for name in names.values() if name not in known]
        if missing:
            raise ConfigError(
                f"addresses: none for {', '.join(missing)}, with whom {self._config.broker} may "
                "have sessions"
            )
        return {number: known[name] for number, name in names.items()}
