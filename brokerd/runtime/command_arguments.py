"""The arguments of control commands: types, signatures, policies, and names of peers."""

from typing import Any

from brokerd.errors import ConfigError, ControlError
from brokerd.model.identity import Peer
from brokerd.model.retention_policy import RetentionPolicy
from brokerd.overlay.topology import nearest
from brokerd.sessions.session import SelfDescription


def take_arguments(arguments: dict[str, Any], /, **wanted: Any) -> list[Any]:
    """Return the wanted arguments in order: name=type, or name=(type, default).

    Raises:
        ControlError: `user`: an argument is missing, of another type, or unknown.
    """
    for name in arguments:
        if name not in wanted:
            raise ControlError("user", f"unknown argument {name[:40]!r}{nearest(name, [*wanted])}")
    taken = []
    for name, kind in wanted.items():
        kind, default = kind if isinstance(kind, tuple) else (kind, None)
        if name not in arguments and default is None:
            raise ControlError("user", f"argument {name!r} is missing")
        value = arguments.get(name, default)
        if type(value) is not kind:
            raise ControlError("user", f"argument {name!r} must be of type {kind.__name__}")
        taken.append(value)
    return taken


def parse_signature(signature: str) -> bytes:
    """Return the bytes of a signature.

    Raises:
        ControlError: of kind user: the text is not hexadecimal.
    """
    try:
        return bytes.fromhex(signature)
    except ValueError:
        raise ControlError("user", "argument 'signature' is not hexadecimal") from None


def find_peer(own: SelfDescription, name: str) -> Peer | None:
    """Return the neighbour with a name; None for the empty name.

    Raises:
        ControlError: `user`: this broker has no link to a broker of this name.
    """
    if not name:
        return None
    for number, its_name in own.names.items():
        if its_name == name:
            return number
    names = list(own.names.values())
    raise ControlError("user", f"{own.name} has no link to {name[:100]!r}{nearest(name, names)}")


def find_peers(own: SelfDescription, names: Any) -> list[Peer]:
    """Return the neighbours with the names of an argument.

    Raises:
        ControlError: `user`: the argument is no list of names, or has an unknown name.
    """
    if not isinstance(names, list) or not all(type(name) is str and name for name in names):
        raise ControlError("user", "peers is a list of names of brokers")
    return [peer for name in names if (peer := find_peer(own, name)) is not None]


def parse_policy(text: str) -> RetentionPolicy:
    """Return a policy.

    Raises:
        ControlError: of kind user: the text states none.
    """
    try:
        return RetentionPolicy.parse(text, "policy")
    except ConfigError as error:
        raise ControlError("user", str(error)) from None
