"""The logs that a subscriber-hosting broker keeps, by name: one per stream."""

from brokerd.model.identity import StreamId


def key_of(stream: StreamId) -> str:
    """A stream in the keys of rows."""
    return f"{stream.broker}.{stream.publisher}"


def log_of(stream: StreamId) -> str:
    """The name of the log of a stream's matches."""
    return f"matches.{key_of(stream)}"
