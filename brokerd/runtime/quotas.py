"""Limits on the publishing rate of a client, so that no other client has to wait for it."""

from brokerd.model.identity import ClientId
from brokerd.units import SECOND_NS


class PublishingRate:
    """A limit of publications per second and client; reads from a faster client are delayed.

    Refusals of single publications would leave gaps in a stream that promises none, so the client
    waits. It may be a second's worth ahead, and is identified by name: reconnecting gains nothing.

    Args:
        per_second: limit of each client.
    """

    def __init__(self, per_second: int) -> None:
        assert per_second > 0, f"{per_second} publications a second"
        self._per_second = per_second
        self._used_up_ns: dict[ClientId, int] = {}
        """Client → the time at which all its publications are within its rate."""

    def sent(self, client: ClientId, publications: int, now_ns: int) -> None:
        """Record publications of a client."""
        begin_ns = max(self._used_up_ns.get(client, 0), now_ns)
        self._used_up_ns[client] = begin_ns + publications * SECOND_NS // self._per_second

    def must_wait(self, client: ClientId, now_ns: int) -> bool:
        """Return True if reads from a client must wait."""
        return self._used_up_ns.get(client, 0) > now_ns + SECOND_NS

    def may_go_on(self, now_ns: int) -> list[ClientId]:
        """Return the clients that need not wait.

        Removes clients that have stayed within the rate.
        """
        within = [name for name in self._used_up_ns if not self.must_wait(name, now_ns)]
        for name in within:
            if self._used_up_ns[name] <= now_ns:
                del self._used_up_ns[name]
        return within
