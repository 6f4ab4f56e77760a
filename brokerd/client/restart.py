"""The restart of a client: the state that a process leaves, and the core that continues from it."""

from brokerd.client.commits import CommitMode
from brokerd.client.core import ClientCore
from brokerd.client.state import ClientState, KeptSubscription


def state_of(core: ClientCore) -> ClientState:
    """Return the state of a client that must survive a restart, as of `revision.current`."""
    progress, wanted = core.progress, core.subscriptions
    subscriptions = tuple(
        KeptSubscription(
            number,
            predicate,
            number in wanted.started,
            progress.committed_positions(number),
            progress.delivered_positions(number),
        )
        for number, predicate in wanted.predicates.items()
    )
    return ClientState(
        core.name,
        core.publishes,
        core.attachment.incarnation,
        core.outgoing.next_sequence,
        core.attachment.home,
        core.source,
        core.outgoing.runs(),
        wanted.last_number,
        subscriptions,
        tuple(wanted.ending),
        core.attachment.witnessed,
    )


def restart(
    state: ClientState, *, instance: bytes = b"", mode: CommitMode = "automatic"
) -> ClientCore:
    """Return the core of a client with the state that an earlier process has left.

    Deliveries that were not committed are delivered again, marked, if the protocol redelivers;
    otherwise they count as committed.
    """
    core = ClientCore(
        state.name,
        publishes=state.publishes,
        incarnation=state.incarnation,
        instance=instance,
        keeps_state=mode != "transactional",
        mode=mode,
    )
    home = state.home
    core.attachment.home = home
    core.attachment.was_attached = home is not None and bool(home.broker)
    core.attachment.has_connected = True
    core.attachment.witnessed = state.witnessed
    core.outgoing.restore(state)
    core.subscriptions.restore(state)
    redelivers = home is not None and home.redelivers
    core.progress.restore(state.subscriptions, redelivers=redelivers)
    return core
