"""Files with one history of a small world, which replay a violation.

    # duplicate: s1/1 got (0, 0, 1) 1 twice in a row
    world protocol=NAME brokers=3 publications=2 subscriptions=1 faults=1 early=0
    kinds crash cut
    mutants NAME
    do publish p1 0 1
    do p1>0

Each line `do` has one action, as in `brokerd.simulator.world.actions`. Brokers are numbers.
"""

from collections.abc import Sequence
from typing import Final

from brokerd.errors import ConfigError
from brokerd.overlay.topology import nearest
from brokerd.protocols.registry import DEFINITIONS
from brokerd.simulator.checks.protocol_checks import named_bug
from brokerd.simulator.search.exploration.exploration import Finding
from brokerd.simulator.search.exploration.small_world import SmallWorld
from brokerd.simulator.world.actions import Action, describe_action
from brokerd.text import first_word

_NUMBERS: Final = ("brokers", "publications", "subscriptions", "faults", "early")
_LISTS: Final = ("kinds", "mutants", "settings")


class HistoryError(ConfigError):
    """A history's text that cannot be read; names the line; the user's fault."""


def is_history(text: str) -> bool:
    """Return True if a text is meant to be a history of a small world."""
    return first_word(text) == "world"


def write_history(world: SmallWorld, finding: Finding) -> str:
    """Return the text of a violation's history."""
    names = world.scene().topology.brokers
    numbers = " ".join(f"{name}={getattr(world, name)}" for name in _NUMBERS)
    lines = [
        *(f"# {line}" for line in finding.violation.splitlines()),
        f"# brokers: {', '.join(f'{number} = {name}' for number, name in enumerate(names))}",
        f"world protocol={world.protocol} {numbers}",
        f"kinds {' '.join(world.kinds)}",
    ]
    if world.mutants:
        lines.append(f"mutants {' '.join(sorted(world.mutants))}")
    lines += [f"settings {setting}" for setting in world.settings]
    lines += [f"do {describe_action(action)}" for action in finding.actions]
    return "\n".join(lines) + "\n"


def read_history(text: str) -> tuple[SmallWorld, tuple[Action, ...]]:
    """Return the world and the actions of a text.

    Raises:
        HistoryError: names the line and the mistake.
    """
    protocol, numbers = "", dict[str, int]()
    lists: dict[str, list[str]] = {name: [] for name in _LISTS}
    actions: list[Action] = []
    for place, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        key, *words = line.split()
        try:
            if key == "world":
                protocol, numbers = _read_world(words)
            elif key in lists:
                lists[key] += words
            elif key == "do" and words:
                actions.append(tuple(_read_word(word) for word in words))
            else:
                raise HistoryError(f"unknown word {key!r}{nearest(key, ['world', 'do', *_LISTS])}")
        except ConfigError as error:
            raise HistoryError(f"line {place}: {error}") from None
    try:
        world = SmallWorld(
            protocol=protocol,
            kinds=tuple(lists["kinds"]),
            mutants=frozenset(named_bug(name, protocol).name for name in lists["mutants"]),
            settings=tuple(lists["settings"]),
            has_lag=True,
            **numbers,
        )
        world.check()
    except ConfigError as error:
        raise HistoryError(str(error)) from None
    return world, tuple(actions)


def _read_world(words: Sequence[str]) -> tuple[str, dict[str, int]]:
    values = dict(word.partition("=")[::2] for word in words)
    protocol = values.pop("protocol", "")
    if protocol not in DEFINITIONS:
        raise HistoryError(f"no protocol {protocol!r}{nearest(protocol, [*DEFINITIONS])}")
    for name, value in values.items():
        if name not in _NUMBERS:
            raise HistoryError(f"unknown bound {name!r}{nearest(name, _NUMBERS)}")
        if not value.isdigit():
            raise HistoryError(f"{name} = {value!r}; write a number")
    return protocol, {name: int(value) for name, value in values.items()}


def _read_word(word: str) -> str | int:
    return int(word) if word.isdigit() else word
