"""A topology file that changes while its broker runs: leaves that join and leave."""

from collections.abc import Callable

from brokerd.config import BrokerConfig
from brokerd.errors import ConfigError, ControlError
from brokerd.model.identity import BrokerNumber
from brokerd.overlay.topology import Topology
from brokerd.overlay.tree import PrimaryTree
from brokerd.protocols.interface import Event, TopologyGrown, TopologyShrunk
from brokerd.protocols.registry import parameters_on


class Surroundings:
    """What a broker knows of the brokers around it, kept up to date.

    Attributes:
        topology: as it was read last.
        parameters: of the protocol, as the topology has them.
        names: name of each broker it may have sessions with, by number.
        addresses: where they listen.
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
        self.neighbourhood = PrimaryTree(self.topology).surroundings(self.number)
        self.names = {number: self.topology.brokers[number] for number in self.neighbourhood.paths}
        self.addresses = self._addresses(self.topology, self.names)

    def reload(self) -> list[Event]:
        """Read the file again; returns what the core has to be told.

        Raises:
            ControlError: of kind user: what is there now does not follow from what was read
                before by leaves that join and leave; nothing has changed here then.
        """
        before = self.topology
        try:
            after = self._read()
        except ConfigError as error:
            raise ControlError("user", str(error)) from error
        if not after.follows(before):
            raise ControlError(
                "user",
                f"{self._config.topology_file}: brokers can only join and leave; anything else "
                "needs a new deployment",
            )
        ball = PrimaryTree(after).surroundings(self.number).paths
        try:
            addresses = self._addresses(after, {number: after.brokers[number] for number in ball})
        except ConfigError as error:
            raise ControlError("user", str(error)) from error
        events: list[Event] = []
        for name in after.left[len(before.left) :]:
            if (number := after.brokers.index(name)) in self.names:
                events.append(TopologyShrunk(number))
                del self.names[number]
        for number in range(len(before.brokers), len(after.brokers)):
            if number in ball:
                events.append(TopologyGrown(number, ball[number][-2]))
                self.names[number] = after.brokers[number]
        self.topology = after
        self.addresses.clear()
        self.addresses.update(addresses)
        return events

    def _addresses(
        self, topology: Topology, names: dict[BrokerNumber, str]
    ) -> dict[BrokerNumber, str]:
        joined = {row.name: row.address for row in topology.joined if row.address}
        known = {**joined, **self._config.addresses}
        missing = [name for name in names.values() if name not in known]
        if missing:
            raise ConfigError(
                f"addresses: none for {', '.join(missing)}; every broker within delta + 1 links "
                "may have to be dialled"
            )
        return {number: known[name] for number, name in names.items()}
