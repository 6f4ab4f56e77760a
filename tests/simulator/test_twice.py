"""Every story of an episode, told twice to the same brokers and clients.

The second time a broker has been suspected, a window been full, a topic been moved before. What
an object keeps of the first episode must not be seen in the second one.
"""

from collections.abc import Callable
from importlib import import_module
from inspect import isfunction, signature
from typing import Any

import pytest

from tests.helpers.twice import tell_twice

ONCE: dict[str, tuple[str, ...]] = {
    "tests.protocols.durable.test_absences": (),
    "tests.protocols.durable.test_consumers": (
        "committed_and_not_let_go_of",
        "test_of_two_connections_of_one_consumer_the_newer_one_goes_on_with_its_token",
    ),
    "tests.protocols.durable.test_early_release": (),
    "tests.protocols.durable.test_returns": (
        "test_a_broker_whose_subscribers_want_nothing_lets_a_pubend_go_on_letting_go",
        "test_a_token_that_comes_when_its_session_is_over_is_nobodys",
        "test_who_was_away_gets_what_a_new_pubend_has_from_its_beginning",
    ),
    "tests.protocols.durable.test_slow_brokers": (),
    "tests.protocols.durable.test_stories": (
        "given_again",
        "new_beside_an_old_tail",
        "test_what_of_a_run_is_for_a_client_is_given_to_it_at_once",
    ),
    "tests.protocols.ges.apart_stories": ("who_has_left_is_heard_of_afterwards",),
    "tests.protocols.ges.readdress_stories": (
        "a_part_that_came_off_is_a_unit_of_its_own",
        "in_the_end_all_are_where_they_were",
        "subscriptions_wait_until_neighbours_take_the_address",
        "who_has_come_back_stays_there",
    ),
    "tests.protocols.ges.slow_stories": (
        "a_broker_that_all_find_slow_ends",
        "a_broker_that_recovers_in_time_stays",
    ),
    "tests.protocols.ges_reliable.test_stories": (
        "a_gatekeeper_dies_for_ever_and_its_subscriber_goes_elsewhere",
        "a_publisher_goes_elsewhere_with_what_was_not_stored",
        "all_is_well",
        "nothing_comes_behind_the_end_of_a_subscription",
        "whoever_dies_before_it_is_told_begins_once",
        "whoever_leaves_from_elsewhere_leaves_nothing",
    ),
    "tests.protocols.ges_reliable.test_trees": (
        "a_publisher_goes_to_another_root_before_it_is_told",
        "a_subscriber_roams_from_unit_to_unit",
        "what_is_published_in_any_unit_comes_to_all",
        "whoever_goes_before_it_is_told_is_stored_for_once",
    ),
    "tests.protocols.gryphon.test_cells": (
        "test_what_one_cell_is_done_with_another_one_still_gets",
    ),
    "tests.protocols.gryphon.test_filters": (
        "kept_where_the_pubend_is_done",
        "test_a_subscription_starts_when_all_pubends_can_be_reached",
        "test_what_one_broker_of_a_cell_holds_back_the_others_do_not_keep",
    ),
    "tests.protocols.gryphon.test_losses": (
        "test_what_is_overtaken_for_longer_is_asked_for_once_and_taken_once",
    ),
    "tests.protocols.gryphon.test_slow_brokers": (),
    "tests.protocols.gryphon.test_stories": (
        "test_a_client_that_stays_away_holds_events_until_its_subscription_ends",
    ),
    "tests.protocols.gryphon.test_total_order": (),
    "tests.protocols.multi_proxy.test_arbiter": (
        "a_candidate_that_dies_is_replaced",
        "test_an_arbiter_that_is_down_delays_new_topics_only",
        "test_topics_go_to_the_server_with_fewest",
    ),
    "tests.protocols.multi_proxy.test_causal": (
        "a_topic_that_nobody_follows_any_more_is_not_kept_for_who_did",
        "crash_of_all_servers_while_they_merge",
        "crash_of_the_giver",
        "what_each_proxy_sees_alone_is_merged_when_both_see_all",
        "what_is_put_while_a_topic_is_given_away_comes_once",
        "what_was_put_before_a_merge_comes_after_it",
    ),
    "tests.protocols.multi_proxy.test_decommissioning": (
        "a_dead_one_has_nothing_kept_for_it",
        "comes_back_all_the_same",
        "known_after_restarts_of_all_others",
        "test_who_was_not_told_learns_of_it_from_neighbours_at_once_or_later",
    ),
    "tests.protocols.multi_proxy.test_retention": (
        "the_newest_record_is_kept_at_any_size",
        "what_is_being_given_away_is_kept_without_room",
    ),
    "tests.protocols.multi_proxy.test_scenarios": (
        "b09_string_order",
        "b19_stale_map_recreate",
    ),
    "tests.protocols.multi_proxy.test_stories": (
        "a_publisher_is_done_when_all_topics_are",
        "a_put_is_tried_again_over_another_proxy_and_stored_once",
        "test_a_dead_proxy_is_gone_around",
        "test_who_subscribes_again_gets_nothing_from_before",
    ),
    "tests.simulator.test_assist": (
        "test_two_brokers_alone_have_nobody_to_ask_and_wait_for_the_link",
    ),
    "tests.simulator.test_stories": (
        "test_islands_taken_for_barriers_are_safe_but_hear_less",
        "test_parts_of_a_frame_that_are_done_one_by_one_are_all_heard_of",
        "test_sources_behind_an_island_are_heard_at_once",
        "test_what_a_barrier_withholds_is_announced_and_the_stream_begins_after_it",
    ),
}
"""Modules with stories, and those of them that can be told once only: they count from the
beginning of the cluster, name the first subscription of a client, or end with a broker, client or
topic that does not return to where it was."""


def _stories(module: str) -> dict[str, Callable[[], Any]]:
    return {
        f"{module.partition('.')[2]}::{name}": story
        for name, story in vars(import_module(module)).items()
        if isfunction(story) and story.__module__ == module and not signature(story).parameters
        if not name.startswith("_") and name not in ONCE[module]
    }


STORIES = {name: story for module in ONCE for name, story in _stories(module).items()}


@pytest.mark.parametrize("name", STORIES)
def test_a_story_goes_the_second_time_as_the_first(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell_twice(STORIES[name], monkeypatch)


def test_each_story_that_is_told_once_exists() -> None:
    for module, names in ONCE.items():
        assert all(isfunction(getattr(import_module(module), name)) for name in names), module
