"""Stories about pairs of subscription and publisher without an owed delivery."""

from bench.spec.workload_model import Bars
from results.rules.findings import PairSummary, describe_nothing_owed
from results.rules.verdict_text import with_publisher_names


def _pair(subscription: str, owed: int, *, started: bool = True) -> PairSummary:
    return PairSummary(
        subscription, "p4/0", None, None, owed, 0, 0, owed, owed, 0, None, None, 0, started=started
    )


def test_pairs_that_were_owed_nothing_are_listed() -> None:
    (line,) = describe_nothing_owed([_pair("s3", 0), _pair("s1", 7), _pair("s2", 0)])
    assert line == "owed nothing: s2 of p4/0, s3 of p4/0"


def test_a_long_list_of_pairs_is_cut() -> None:
    (line,) = describe_nothing_owed(_pair(f"s{number}", 0) for number in range(9))
    assert line.endswith("s3 of p4/0, 5 more")


def test_a_subscription_that_never_started_is_not_listed() -> None:
    assert not [*describe_nothing_owed([_pair("s1", 0, started=False), _pair("s2", 1)])]


def test_no_number_of_deliveries_is_required_by_default() -> None:
    assert Bars().deliveries_per_pair_min == 0


def test_texts_name_publishers_as_their_clients_are_called() -> None:
    names = {"p1/0": "p1-pub-4", "p1/1": "p1-pub-1", "p1/10": ""}
    text = "s1-sub-1/1 is owed 0 of p1/0, of p1/1, of p1/10 and runs/p1/0; see p9/0 (p1/1)"
    assert with_publisher_names(text, names) == (
        "s1-sub-1/1 is owed 0 of p1-pub-4, of p1-pub-1, of p1/10 and runs/p1/0; see p9/0 (p1-pub-1)"
    )
