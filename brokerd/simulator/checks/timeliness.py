"""How soon what is owed must be there once nothing is in its way, from a plan's own delays.

Everything is a sum of what a plan allows to take time: a message on its way, a commit on its way
to disk, a silence before it is suspected, an attempt before it is given up, the longest wait
before the next one. No audit is among them: an audit heals what a lost answer has left behind,
and with up to δ failures none is lost for good.
"""

from dataclasses import dataclass

from brokerd.protocols.registry import definition_of
from brokerd.simulator.checks.protocol_checks import planning_of
from brokerd.simulator.search.plan import Failing, Moving, Plan, Reattaching
from brokerd.simulator.world.broker import DISK_NS
from brokerd.simulator.world.clients import RECONNECT_NS
from brokerd.simulator.world.clock import NEVER_NS
from brokerd.units import MILLISECOND_NS


@dataclass(frozen=True, slots=True)
class Bounds:
    """Durations from the moment on at which the last obstacle is gone.

    Attributes:
        sessions_ns: every two brokers that want a session have one, and so has every client.
        gates_ns: no subscription is closed to any source.
        everything_ns: all is delivered and acknowledged, and nobody holds anything.
        saying_ns: from then on, brokers have announced what they announce in time.
    """

    sessions_ns: int
    gates_ns: int
    everything_ns: int
    saying_ns: int


def bounds_of(plan: Plan) -> Bounds:
    """The bounds that a plan on a clock must keep."""
    parameters, network, session = plan.parameters, plan.network, plan.network.session
    planning = planning_of(plan.protocol)
    bypasses_links = definition_of(plan.protocol).bypasses_links(parameters)
    delays = [int(move.on[-1]) for move in _failing(plan, "delay")]
    message_ns = network.latency_highest_ns + network.jitter_ns
    slowest_ns = message_ns + max(delays, default=0) * MILLISECOND_NS
    disk_ns = 2 * DISK_NS
    brokers = len(plan.topology.brokers)
    # A dead session is noticed, an attempt that comes too early fails, and after the longest
    # wait another one is made: hello, answer, Summary.
    broker_ns = (
        session.suspicion_ns + session.connect_timeout_ns + planning.retry_limit_ns(parameters)
    ) + 4 * slowest_ns
    client_ns = (
        session.suspicion_ns + session.connect_timeout_ns + 2 * RECONNECT_NS + disk_ns
    ) + 5 * slowest_ns
    sessions_ns = broker_ns + client_ns
    if bypasses_links:  # a relayed session is replaced by a direct one, another instance
        sessions_ns += broker_ns
    # Recoveries end one after the other; then subscriptions go out, confirmations come back, and
    # notifiers go home, each broker on the way waiting for its disk.
    gates_ns = sessions_ns + brokers * (4 * message_ns + 2 * disk_ns)
    slow = [int(move.on[-1]) for move in _failing(plan, "slow_client")]
    window = planning.client_window(parameters)
    windows = 1 + (plan.publications // window if window else 0)
    window_ns = 2 * message_ns + max(slow, default=0) * MILLISECOND_NS
    everything_ns = gates_ns + windows * window_ns + 2 * brokers * message_ns
    if any(type(move) in (Moving, Reattaching) for move in plan.moves):
        everything_ns += 2 * gates_ns  # it starts anew elsewhere, and then its old broker drains
    everything_ns += planning.discovery_ns(parameters)
    everything_ns += planning.turns(parameters, plan.publications) * (message_ns + disk_ns)
    if parameters.client_linger_ns < NEVER_NS:  # what a client does not ask for again goes then
        everything_ns += parameters.client_linger_ns
    # An interval that has just begun, one more, and an answer that a slow client may delay.
    saying_ns = planning.saying_ns(parameters) + 2 * window_ns + 2 * slowest_ns + disk_ns
    return Bounds(sessions_ns, gates_ns, everything_ns, saying_ns)


def _failing(plan: Plan, kind: str) -> list[Failing]:
    return [move for move in plan.moves if type(move) is Failing and move.kind == kind]
