"""The logs that a subscriber-hosting broker stores, by name: one per stream."""

from brokerd.model.identity import StreamId


def key_of(stream: StreamId) -> str:
    """Return a stream as a part of row keys."""
    return f"{stream.broker}.{stream.publisher}"


def log_of(stream: StreamId) -> str:
    """Return the name of the log of a stream's matches."""
    return f"matches.{key_of(stream)}"
