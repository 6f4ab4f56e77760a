"""How much one client may publish, so that no other has to wait for it."""

from brokerd.model.identity import ClientId
from brokerd.units import SECOND_NS


class PublishingRate:
    """Publications a second that each client may send; who sends more is read later.

    Refusing single publications would leave gaps in a stream that promises none, so the client
    waits. It may be a second's worth ahead, and is known by name: connecting again gains nothing.

    Args:
        per_second: for each client.
    """

    def __init__(self, per_second: int) -> None:
        assert per_second > 0, f"{per_second} publications a second"
        self._per_second = per_second
        self._used_up_ns: dict[ClientId, int] = {}
        """Client → when all that it has sent is within its rate."""

    def sent(self, client: ClientId, publications: int, now_ns: int) -> None:
        """A client has published."""
        begin_ns = max(self._used_up_ns.get(client, 0), now_ns)
        self._used_up_ns[client] = begin_ns + publications * SECOND_NS // self._per_second

    def must_wait(self, client: ClientId, now_ns: int) -> bool:
        """Whether nothing more of it is to be read yet."""
        return self._used_up_ns.get(client, 0) > now_ns + SECOND_NS

    def may_go_on(self, now_ns: int) -> list[ClientId]:
        """Those who need not wait; forgets whoever has stayed within the rate for long enough."""
        within = [name for name in self._used_up_ns if not self.must_wait(name, now_ns)]
        for name in within:
            if self._used_up_ns[name] <= now_ns:
                del self._used_up_ns[name]
        return within
