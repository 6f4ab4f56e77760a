"""Rules of pure packages: everything that decides is an argument."""

from tests.architecture.layers import CLIENT_CORE

PURE = (
    "brokerd.model",
    "brokerd.matching",
    "brokerd.overlay",
    "brokerd.protocols",
    "brokerd.sessions",
    "brokerd.client.broker_choice",
    *CLIENT_CORE,
    "brokerd.client.state_encoding",
    "brokerd.client.outgoing",
)


_CLOCK = "the time is an argument (`now_ns`), so that simulated time is as good as real time"


_CHANCE = "chance comes from a seeded `Random` that is handed in, so that a seed replays a run"


_WORLD = "effects are returned as values and carried out by others, so that tests can look at them"


_ADDRESS = "it differs from process to process, so that a seed would not replay a run"


REFUSED_MODULES = {
    "time": _CLOCK,
    "random": _CHANCE,
    "uuid": _CHANCE,
    "os": _WORLD,
    "socket": _WORLD,
    "asyncio": _WORLD,
    "trio": _WORLD,
    "threading": _WORLD,
}


REFUSED_CALLS = {"hash": _ADDRESS, "id": _ADDRESS}


# Annotations of parameters need the class; the module is the shared, unseeded generator.
ALLOWED_NAMES = frozenset({("random", "Random")})
