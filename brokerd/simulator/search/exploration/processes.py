"""Processes of actions: brokers and clients whose state an action reads or changes.

A lane belongs to its receiver or its owner; an attempt to dial belongs to both sides.
"""

from typing import Final

from brokerd.model.identity import Peer
from brokerd.simulator.world.actions import Action

_REQUESTS: Final = ("publish", "subscribe", "restart", "crash", "suspect")
"""Verbs of actions that belong to their first target."""

_DISKS: Final = ("disk", "log")


def is_lane(action: Action) -> bool:
    """Return True if an action takes the head of a lane."""
    return len(action) == 1


def peer_of(word: str) -> Peer:
    """Return the broker or client of a word in the name of a lane."""
    return int(word) if word.isdigit() else word


def processes_of(action: Action) -> tuple[Peer, ...]:
    """Return the processes of an action; none for an action that may concern all of them."""
    if not is_lane(action):
        return (action[1],) if action[0] in _REQUESTS else ()
    name = action[0].partition("#")[0]
    if ">" in name:
        return (peer_of(name.partition(">")[2]),)
    owner, _, rest = name.partition(":")
    kind, _, peer = rest.partition(":")
    return (peer_of(owner), peer_of(peer)) if kind == "dials" else (peer_of(owner),)


def is_local(lane: str) -> bool:
    """Return True for a lane of a disk, and for a lane to, from or of a client."""
    name = lane.partition("#")[0]
    sender, _, receiver = name.partition(">")
    if receiver:
        return not (sender.isdigit() and receiver.isdigit())
    owner, _, rest = name.partition(":")
    return not owner.isdigit() or rest in _DISKS
