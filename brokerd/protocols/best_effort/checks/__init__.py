"""Simulation of best_effort: the wording of its messages, and one rule."""

from typing import Any

from brokerd.protocols.best_effort.checks.starts import StartChecks
from brokerd.protocols.best_effort.messages import (
    ForwardedPublications,
    SubscriptionsOffered,
    SubscriptionsReached,
    SubscriptionsWithdrawn,
)
from brokerd.simulator.checks.protocol_checks import SimulatedProtocol
from brokerd.simulator.checks.step_text import Wording


class BestEffortWording(Wording):
    """See Wording."""

    def message(self, message: Any) -> str:
        """See Wording."""
        match message:
            case ForwardedPublications(run=run):
                return f"publication {self.run(run)}"
            case SubscriptionsOffered(subscriptions=entries, complete=complete):
                listed = " ".join(self.subscription(entry[0]) for entry in entries) or "nothing"
                return f"{'all subscriptions' if complete else 'subscription'}: {listed}"
            case SubscriptionsReached(subscriptions=entries):
                return f"has {' '.join(map(self.subscription, entries))}"
            case SubscriptionsWithdrawn(subscriptions=entries):
                return f"withdraws {' '.join(map(self.subscription, entries))}"
        return super().message(message)


SIMULATED = SimulatedProtocol(
    make_checks=StartChecks, checks_always=True, make_wording=BestEffortWording
)
