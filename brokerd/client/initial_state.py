"""The initial state of a client: empty, from its store, or from a token."""

from brokerd.client.core import ClientCore
from brokerd.client.restart import restart
from brokerd.client.state_encoding import read_kept
from brokerd.client.store import Store
from brokerd.client.tokens import Tokens, read_checkpoint_token


def core_of(
    name: str,
    publishes: bool,
    incarnation: int | None,
    instance: bytes,
    deployment_id: str,
    store: Store | None,
    automatic_commit: bool,
) -> ClientCore:
    """Return the client that the store holds, or a new one."""
    content = store.load() if store is not None else None
    if content is None:
        return ClientCore(
            name,
            publishes=publishes,
            incarnation=1 if incarnation is None else incarnation,
            exact_incarnation=incarnation is not None,
            instance=instance,
            keeps_state=store is not None,
            mode="automatic" if automatic_commit else "explicit",
        )
    state = read_kept(content, str(store), name, deployment_id, publishes=publishes)
    return restart(state, instance=instance, mode="automatic" if automatic_commit else "explicit")


def resume_core(
    name: str, publishes: bool, instance: bytes, deployment_id: str, tokens: Tokens
) -> tuple[ClientCore, int]:
    """Return the client of a token, or a new client, and the generation of its tokens."""
    generation, token = tokens.take_over(name)
    if not token:
        core = ClientCore(
            name,
            publishes=publishes,
            incarnation=generation,
            instance=instance,
            mode="transactional",
        )
        return core, generation
    read = read_checkpoint_token(token, name, deployment_id)
    state = read.to_state(generation, publishes)
    return restart(state, instance=instance, mode="transactional"), generation
