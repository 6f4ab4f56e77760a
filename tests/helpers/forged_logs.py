"""Forgeries of the logs of subscribers and publishers; see `tests.helpers.forged_runs`."""

import shutil
from itertools import pairwise

from tests.helpers.forged_folders import (
    FAR,
    LAST,
    NEAR,
    PUBLISHERS,
    S1,
    S2,
    RunFolder,
    _put_in_order,
    forgery,
)
from tests.helpers.runs import ORIGIN_NS, SECOND

# --- What was delivered ---------------------------------------------------------------------


@forgery("violation", "missing", online="missing")
def one_delivery_is_left_out(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        rows.drop(rows.of(subscription=S1, publisher=0, sequence=20))


@forgery("violation", "fence_missing", online="fences awaited")
def the_end_of_a_log_is_cut_off(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        rows.drop(rows.of(subscription=S1) & (rows.all["sequence"] > 25))


@forgery("violation", "missing", online="fences awaited")
def a_source_reaches_a_subscription_never(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        rows.drop(rows.of(subscription=S1, publisher=1))


@forgery("violation", "duplicate", online="duplicate")
def one_comes_twice(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        (place,) = rows.places(subscription=S1, publisher=0, sequence=20)
        rows.insert(place + 1, rows.all[place])


@forgery("violation", "reordered", online="reordered")
def two_are_swapped(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        a, b = rows.places(subscription=S1, publisher=0)[20:22]
        for column in ("sequence", "digest"):
            rows.all[column][[a, b]] = rows.all[column][[b, a]]


@forgery("violation", "order_differs", online="order_differs")
def two_of_two_publishers_are_swapped_in_a_total_order(run: RunFolder) -> None:
    _put_in_order(run)
    with run.records(NEAR, "deliveries") as rows:
        places = rows.places(subscription=S1)
        a, b = next(
            (a, b)
            for a, b in pairwise(places[20:])
            if rows.all["sequence"][a] == rows.all["sequence"][b]
        )
        for column in ("sequence", "digest", "publisher"):
            rows.all[column][[a, b]] = rows.all[column][[b, a]]


@forgery("violation", "corrupted", online="corrupted")
def one_holds_something_else(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        rows.all["digest"][rows.of(subscription=S1, publisher=0, sequence=20)] ^= 1


@forgery("violation", "phantom", online="phantom")
def one_was_never_sent(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        row = rows.all[-1:].copy()
        row["sequence"] = LAST + 7
        rows.insert(len(rows.all), row)


@forgery("violation", "phantom", online="phantom")
def one_is_of_a_source_that_nobody_knows(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        rows.sidecar["tables"]["publishers"].append("b2/77")
        row = rows.all[-1:].copy()
        row["publisher"] = 4
        rows.insert(len(rows.all), row)


@forgery("violation", "wrong_match", online="wrong_match")
def one_comes_to_whom_it_does_not_concern(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        of_s2 = {*rows.all["sequence"][rows.of(subscription=S2, publisher=0)].tolist()}
        (place,) = (
            place
            for place in rows.places(subscription=S1, publisher=0)
            if rows.all["sequence"][place] == min({*range(2, LAST)} - of_s2)
        )
        row = rows.all[place : place + 1].copy()
        row["subscription"] = S2
        rows.insert(place + 1, row)


@forgery("violation", "gap_not_permitted", online="missing")
def a_loss_is_declared_a_gap(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        rows.all["kind"][rows.of(subscription=S1, publisher=0, sequence=20)] = 2


@forgery("violation", "missing", online="missing")
def one_came_on_the_wire_only(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        rows.all["layer"][rows.of(subscription=S1, publisher=0, sequence=20)] = 0


@forgery("doubt", "are logged as fences and are none", blind="logged kinds")
def a_publication_is_logged_as_a_fence(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        rows.all["kind"][rows.of(subscription=S1, publisher=0, sequence=20)] = 1


# --- When it was delivered ------------------------------------------------------------------


@forgery("doubt", "received before they were sent", blind="clocks")
def deliveries_come_before_they_were_sent(run: RunFolder) -> None:
    with run.records(FAR, "deliveries") as rows:
        rows.all["received_ns"] -= 5 * SECOND


@forgery("doubt", "moved back by", blind="clocks")
def the_clock_of_a_subscriber_jumps_back(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        rows.all["received_ns"][: len(rows.all) // 2] += 20 * SECOND


@forgery("doubt", "moved back by", blind="clocks")
def the_clock_of_the_publishers_jumps_back(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "publications") as rows:
        rows.all["sent_ns"][len(rows.all) // 2 :] -= 20 * SECOND


@forgery("doubt", "have no time", blind="clocks")
def deliveries_have_no_time(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        rows.all["received_ns"][-3:] = 0


# --- Subscribers' logs ----------------------------------------------------------------------


@forgery("doubt", "was not closed", online="fences awaited")
def a_torn_log_hides_a_loss(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        rows.drop(rows.all["sequence"] > 25)
        rows.sidecar["closed"] = False


@forgery("doubt", "is of run", online="fences awaited")
def the_log_is_of_another_run(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        rows.sidecar["run_id"] = "another"


@forgery("doubt", "there is no log of", online="fences awaited")
def a_process_is_forgotten(run: RunFolder) -> None:
    shutil.rmtree(run.path(f"raw/{NEAR}"))


@forgery("doubt", "was never accepted", blind="subscriptions' log")
def a_subscription_never_started(run: RunFolder) -> None:
    with run.subscription() as line:
        line["t_accepted_ns"] = None


@forgery("doubt", "after p1/0 had sent its opening fence", blind="subscriptions' log")
def a_subscription_started_late(run: RunFolder) -> None:
    with run.subscription() as line:
        line["t_accepted_ns"] = ORIGIN_NS + SECOND


@forgery("doubt", "requested \"symbol = 'NONE'\"", online="missing")
def the_logged_predicate_asks_for_nothing(run: RunFolder) -> None:
    with run.subscription() as line:
        line["predicate"] = "symbol = 'NONE'"
    with run.records(NEAR, "deliveries") as rows:
        rows.drop(rows.of(subscription=S1, kind=0))


@forgery("doubt", "was at b1; the workload has s1", blind="subscriptions' log")
def a_subscription_was_elsewhere(run: RunFolder) -> None:
    with run.subscription() as line:
        line["broker"] = "b1"


@forgery("doubt", "is not in the workload", blind="subscriptions' log")
def a_subscription_is_of_nobody(run: RunFolder) -> None:
    with run.subscription() as line:
        line["subscriber"] = "s1-sub-2"


@forgery("doubt", "two logs are of subscription s1-sub-1/1", blind="subscriptions' log")
def a_subscription_is_logged_twice(run: RunFolder) -> None:
    with run.lines(f"raw/{NEAR}/subscriptions.jsonl") as lines:
        lines.append(lines[0])


@forgery("doubt", "the workload requires", online="missing")
def the_workload_and_the_log_ask_for_nothing(run: RunFolder) -> None:
    old = 'filter = "price <= 250 or volume > 9000"'
    run.replace("spec/workload.toml", old, "filter = \"symbol = 'NONE'\"")
    with run.lines(f"raw/{NEAR}/subscriptions.jsonl") as lines:
        lines[1]["predicate"] = "symbol = 'NONE'"
    with run.records(NEAR, "deliveries") as rows:
        rows.drop(rows.of(subscription=S2, kind=0))


# --- Publishers' logs -----------------------------------------------------------------------


def _forget(run: RunFolder, sequence: int, *layouts: str) -> None:
    """Remove a publication of the first publisher from these logs and from all deliveries."""
    columns = {"publications": "sequence", "acks": "first"}
    for layout in layouts:
        with run.records(PUBLISHERS, layout) as rows:
            rows.drop(rows.of(publisher=0, **{columns[layout]: sequence}))
    for process in (NEAR, FAR):
        with run.records(process, "deliveries") as rows:
            rows.drop(rows.of(publisher=0, sequence=sequence))


@forgery("doubt", "are not in its publisher's log", online="missing")
def an_acknowledged_number_is_not_in_the_log(run: RunFolder) -> None:
    _forget(run, 20, "publications")


@forgery("doubt", "are not in its publisher's log", online="missing")
def a_number_is_in_no_log_at_all(run: RunFolder) -> None:
    _forget(run, 20, "publications", "acks")


@forgery("doubt", "not acknowledged and not delivered", online="missing")
def one_was_neither_answered_nor_received(run: RunFolder) -> None:
    _forget(run, 20, "acks")


@forgery("doubt", "not acknowledged and not delivered", online="missing")
def one_was_refused_and_not_received(run: RunFolder) -> None:
    _forget(run, 20)
    with run.records(PUBLISHERS, "acks") as rows:
        rows.all["outcome"][rows.of(publisher=0, first=20)] = 2


@forgery("doubt", "are not in its publisher's log", blind="publishers' logs")
def the_last_number_was_only_acknowledged(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "acks") as rows:
        rows.all["last"][rows.of(publisher=0, last=LAST)] = LAST + 1


@forgery("violation", "phantom", blind="publishers' logs")
def what_was_delivered_is_not_in_the_log(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "publications") as rows:
        rows.drop(rows.of(publisher=0, sequence=20))


@forgery("violation", "sequence_reuse", blind="publishers' logs")
def a_number_is_used_twice(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "publications") as rows:
        (place,) = rows.places(publisher=0, sequence=20)
        rows.insert(place, rows.all[place])


@forgery("violation", "rejected", blind="publishers' logs")
def one_that_was_refused_is_delivered(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "acks") as rows:
        rows.all["outcome"][rows.of(publisher=0, first=20)] = 2


@forgery("doubt", "published other content", blind="publishers' logs")
def something_else_was_published(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "publications") as rows:
        rows.all["attribute_set"][rows.of(publisher=0, sequence=20)] ^= 1


@forgery("doubt", "other attribute sets", blind="publishers' logs")
def attributes_are_not_those_of_the_seed(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "publications") as rows:
        rows.sidecar["tables"]["attribute_sets"][3]["price"] += 1


@forgery("doubt", "other attribute sets", blind="publishers' logs")
def attributes_are_of_another_kind(run: RunFolder) -> None:
    """1.0 equals 1 in Python, but is a different value on the wire."""
    with run.records(PUBLISHERS, "publications") as rows:
        attributes = rows.sidecar["tables"]["attribute_sets"][3]
        attributes["price"] = float(attributes["price"])


@forgery("doubt", "before they were reserved", blind="publishers' logs")
def numbers_were_never_reserved(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "intents") as rows:
        rows.all["last"] = 20


@forgery("doubt", "disagree on numbers with two answers", blind="publishers' logs")
def an_acknowledgement_came_twice(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "acks") as rows:
        rows.insert(5, rows.all[4])


@forgery("doubt", "disagree on answers before their publication", blind="publishers' logs")
def acknowledgements_came_before_their_publications(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "acks") as rows:
        rows.all["acked_ns"] -= SECOND // 10


@forgery("doubt", "has no opening and closing fence", online="fences awaited")
def there_is_no_closing_fence(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "acks") as rows:
        rows.drop(rows.of(publisher=0, last=LAST))
    for process in (NEAR, FAR):
        with run.records(process, "deliveries") as rows:
            rows.drop(rows.of(publisher=0, sequence=LAST))


@forgery("doubt", "there is no log of publisher", blind="publishers' logs")
def the_publishers_were_killed(run: RunFolder) -> None:
    """The names of a log are written when it is closed."""
    for layout in ("publications", "acks", "intents"):
        with run.records(PUBLISHERS, layout) as rows:
            rows.sidecar["tables"], rows.sidecar["closed"] = {}, False


@forgery("doubt", "there is no log of publisher", blind="publishers' logs")
def a_publisher_is_forgotten(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "publications") as rows:
        rows.sidecar["tables"]["publisher_names"]["p1/3"] = "nobody"


@forgery("doubt", "the workload has p1", online="phantom")
def a_publisher_was_elsewhere(run: RunFolder) -> None:
    for process, layout in (
        *((PUBLISHERS, layout) for layout in ("publications", "acks", "intents")),
        *((process, "deliveries") for process in (NEAR, FAR)),
    ):
        with run.records(process, layout) as rows:
            tables = rows.sidecar["tables"]
            tables["publishers"][3] = "s1/3"
            if "publisher_names" in tables:
                tables["publisher_names"]["s1/3"] = tables["publisher_names"].pop("p1/3")


@forgery("doubt", "was not closed", blind="publishers' logs")
def the_log_of_the_publishers_was_not_closed(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "publications") as rows:
        rows.sidecar["closed"] = False
