"""The encoding of a client's state for its store."""

from hashlib import blake2b
from typing import Any, Final

import cbor2

from brokerd.client.state import ClientState, Home, KeptSubscription, Positions, read_mark
from brokerd.errors import ConfigError, RemoteProtocolError, ResumeTokenRefused, StorageCorrupt
from brokerd.model.client_messages import Publish, Subscribe
from brokerd.model.identity import ClientId, SourceId
from brokerd.model.resume_token import ResumeToken, read_resume_token
from brokerd.protocols.registry import DEFINITIONS
from brokerd.wire.codec import PREFIX, decode, encode
from brokerd.wire.strict_cbor import StrictCborError, decode_strict

_MAGIC: Final = b"pubsubctl/client/2\n"
_CHECKSUM_BYTES: Final = 16


def write_kept(state: ClientState) -> bytes:
    """Return the bytes of a state; its resume tokens are made by the protocol."""
    home = state.home
    content = [
        state.name,
        state.publishes,
        state.incarnation,
        state.next_sequence,
        None if home is None else [home.broker, home.deployment, home.protocol],
        None if state.source is None else list(state.source),
        [frame_of(Publish(run)) for run in state.runs],
        state.last_number,
        [
            [
                frame_of(Subscribe(each.number, each.predicate)),
                each.is_started,
                write_token(home, each.committed),
                write_token(home, each.given),
            ]
            for each in state.subscriptions
        ],
        list(state.ending),
        None if state.witnessed is None else list(state.witnessed),
    ]
    body = _MAGIC + cbor2.dumps(content)
    return body + _checksum(body)


def write_token(home: Home | None, positions: Positions) -> bytes:
    """Return the resume token for the positions of a subscription; empty without positions."""
    if home is None or not positions:
        return b""
    packed = DEFINITIONS[home.protocol].pack_positions(positions)
    return ResumeToken(home.protocol, home.deployment, packed).to_bytes()


def home_of(broker: str, deployment: str, protocol: str) -> Home:
    """Return a broker, with the promises of its protocol that matter to a client.

    For an unknown protocol, the stricter promises are assumed.
    """
    definition = DEFINITIONS.get(protocol)
    if definition is None:
        return Home(broker, deployment, protocol, may_lose=False)
    promises = definition.promises
    return Home(
        broker,
        deployment,
        protocol,
        may_lose=not promises.exactly_once,
        redelivers=promises.redelivers,
        resumes_elsewhere=promises.resumes_elsewhere,
        leaves_freely=promises.leaves_freely,
    )


def read_kept(
    content: bytes, where: str, name: ClientId, deployment: str, *, publishes: bool
) -> ClientState:
    """Return the state in a store's content, which must be of this client.

    Args:
        where: name of the store in an error.
        deployment: required deployment; empty for any.

    Raises:
        StorageCorrupt: the content is damaged, or was not written by a client.
        ConfigError: the content is another client's, or of another deployment.
        ResumeTokenRefused: a token in the content is of another protocol or deployment, or damaged.
    """
    body, checksum = content[:-_CHECKSUM_BYTES], content[-_CHECKSUM_BYTES:]
    if not content.startswith(_MAGIC):
        raise StorageCorrupt(f"{where}: {len(content)} bytes that no client has kept")
    if _checksum(body) != checksum:
        raise StorageCorrupt(f"{where}: damaged, or cut off after {len(content)} bytes")
    try:
        state = _read(decode_strict(body[len(_MAGIC) :]))
    except ResumeTokenRefused as error:
        raise ResumeTokenRefused(f"{where}: {error}") from error
    except (StrictCborError, RemoteProtocolError, ValueError, TypeError, KeyError) as error:
        raise StorageCorrupt(f"{where}: {str(error)[:300]}") from error
    if state.name != name:
        raise ConfigError(f"{where}: is of client {state.name!r}, not {name!r}")
    theirs = state.home.deployment if state.home is not None else ""
    if deployment and theirs and theirs != deployment:
        raise ConfigError(f"{where}: is of deployment {theirs!r}, not {deployment!r}")
    if state.publishes != publishes:
        raise ConfigError(f"{where}: publishes = {publishes}, and was {state.publishes}")
    return state


def _read(values: Any) -> ClientState:
    name, publishes, incarnation, next_sequence, home, source, runs, last, *others = values
    subscriptions, ending, witnessed = (*others, None)[:3]  # older stores have no mark
    here = None if home is None else home_of(*home)
    return ClientState(
        name,
        publishes,
        incarnation,
        next_sequence,
        here,
        None if source is None else SourceId(*source),
        tuple(message_of(frame, Publish).run for frame in runs),
        last,
        tuple(_subscription(each, here) for each in subscriptions),
        tuple(ending),
        read_mark(witnessed),
    )


def _subscription(values: Any, home: Home | None) -> KeptSubscription:
    frame, is_started, committed, given = values
    request = message_of(frame, Subscribe)
    return KeptSubscription(
        request.number, request.predicate, is_started, read_token(committed, home),
        read_token(given, home),
    )  # fmt: skip


def read_token(token: bytes, home: Home | None) -> Positions:
    """Return the positions that `write_token` encoded.

    Raises:
        ResumeTokenRefused: the token is of another protocol or deployment, or damaged.
    """
    if not token or home is None:
        return ()
    read = read_resume_token(token, protocol=home.protocol, deployment=home.deployment)
    return tuple(DEFINITIONS[home.protocol].unpack_positions(read.content))


def frame_of(message: Any) -> bytes:
    """Return a message as encoded for the wire."""
    return b"".join(encode(message))


def message_of(frame: bytes, kind: type[Any]) -> Any:
    """Return the message in a frame; ValueError if it is of another kind."""
    length, header_length = PREFIX.unpack_from(frame)
    view = memoryview(frame)[PREFIX.size :]
    message = decode(view[:header_length], view[header_length:], "the store")
    if type(message) is not kind or length != len(frame) - 4:
        raise ValueError(f"an entry of {len(frame)} bytes is no {kind.__name__}")
    return message


def _checksum(body: bytes) -> bytes:
    return blake2b(body, digest_size=_CHECKSUM_BYTES).digest()
