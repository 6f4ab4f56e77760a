"""Mistakes in the client service that the brokers of all protocols share."""

from typing import Final

from tests.helpers.planted_stories import Row

_OWN: Final = "brokerd/protocols/parts/clients/own_subscriptions.py"
_STORIES: Final = "tests/protocols/test_client_messages.py::"
_LEAVES: Final = "test_a_client_leaves_without_asking_for_what_it_had_not_acknowledged"

ROWS: Final = (
    *[
        Row(
            f"waits-for-what-is-not-asked-for-{protocol}",
            _OWN,
            "if not (drain and local.claimed == client.session):",
            "if not drain:",
            f"{_STORIES}{_LEAVES}",
            {"protocol": protocol, "drain": True},
        )
        for protocol in ("gryphon", "multi_proxy")
    ],
    Row(
        "drops-what-is-asked-for",
        _OWN,
        "if not (drain and local.claimed == client.session):",
        "if True:",
        f"{_STORIES}test_a_client_leaves_only_when_it_has_what_it_asked_for",
        {"protocol": "gryphon"},
    ),
    Row(
        "any-order-is-taken",
        _OWN,
        "if not (drain and local.claimed == client.session):",
        "if not drain:",
        f"{_STORIES}test_a_broker_answers_or_refuses_whatever_its_clients_send",
        {"protocol": "multi_proxy"},
    ),
)
