"""The wording of messages between brokers of a hierarchy, for scenarios."""

from typing import Any

from brokerd.protocols.ges.dissemination import UP
from brokerd.protocols.ges.messages import (
    DOWN,
    ClientsCounted,
    DutyStated,
    GraphStated,
    LoadAnswered,
    LoadProbe,
    ProfileChanged,
    ProfileReached,
    ProfileStated,
    RoutedPublications,
    UnitsAttested,
)
from brokerd.protocols.ges.units import Unit
from brokerd.simulator.checks.step_text import Wording


class GesWording(Wording):
    """See Wording."""

    def message(self, message: Any) -> str:
        match message:
            case RoutedPublications(run=run, targets=targets):
                places = " ".join(_unit(target.unit) for target in targets)
                return f"publication {self.run(run)} to {places}"
            case GraphStated(statements=statements):
                ends = [f"{_unit(each.low_end)}-{_unit(each.high_end)}" for each in statements]
                states = [
                    f"{end} {_state(each.factor)}"
                    for end, each in zip(ends, statements, strict=True)
                ]
                return f"links: {', '.join(states)}"
            case ProfileStated(origin=origin, predicates=entries):
                listed = " ".join(self.subscription(entry[0]) for entry in entries) or "nothing"
                return f"all of {self.name(origin)}: {listed}"
            case ProfileChanged(added=added, removed=removed):
                removals = " ".join(map(self.subscription, removed))
                additions = " ".join(self.subscription(entry[0]) for entry in added)
                return f"profile: {f'with {additions}' if additions else f'without {removals}'}"
            case ProfileReached(origin=origin):
                return f"all have the profile of {self.name(origin)}"
            case DutyStated(level=level):
                return f"keeps profiles of level {level}"
            case UnitsAttested(units=units):
                return f"all profiles of {' '.join(map(_unit, units))}"
            case LoadProbe():
                return "how long does this take?"
            case LoadAnswered():
                return "so long"
            case ClientsCounted(clients=clients):
                return f"about {clients} clients are here"
        return super().message(message)


def _state(factor: int) -> str:
    return {DOWN: "down", UP: "up"}.get(factor, f"up at {factor} times the cost")


def _unit(unit: Unit) -> str:
    return ".".join(map(str, unit))
