"""Tests of the guarantees of workloads: checked orders, and excessive ones."""

from typing import Any

import pytest

from bench.load.load_plan import _order
from bench.run.system_under_test import OurBrokers
from bench.spec.keys import Overrides
from bench.spec.lint import guarantee_warnings
from bench.spec.spec import ExperimentSpec, load_experiment
from bench.spec.validation import SpecError


def experiment(protocol: str, workload: str = "mp22-arbiter", **keys: Any) -> ExperimentSpec:
    if protocol != "multi_proxy":
        return load_experiment(workload, Overrides(protocol=protocol, keys=keys))
    return load_experiment(workload, Overrides(keys=keys))


def test_a_workload_that_names_no_order_asks_for_the_promised_one() -> None:
    spec = experiment("multi_proxy")
    assert spec.workload.guarantee.order == "promised"
    assert 'order = "promised"' in spec.workload_toml()
    assert [*guarantee_warnings(spec)] == []
    for order in ("topic", "stream", "none"):
        assert [*guarantee_warnings(experiment("multi_proxy", **{"guarantee.order": order}))] == []


@pytest.mark.parametrize("order", ["publisher", "total"])
def test_more_than_is_promised_is_warned_of(order: str) -> None:
    (warning,) = guarantee_warnings(experiment("multi_proxy", **{"guarantee.order": order}))
    assert warning.startswith("/")
    assert f"mp22-arbiter.toml: guarantee.order = '{order}'" in warning
    assert "multi_proxy (topic)" in warning
    (lossy,) = guarantee_warnings(experiment("best_effort", "demo"))
    assert "guarantee.delivery = 'exactly-once'" in lossy
    assert [*guarantee_warnings(experiment("delta_tree", "demo"))] == []


@pytest.mark.parametrize(
    "asked, order, may_overtake",
    [
        ({}, "topic", True),
        ({"guarantee.order": "publisher"}, "publisher", True),
        ({"guarantee.order": "none"}, "none", True),
        ({"guarantee.delivery": "at-most-once"}, "topic", False),
    ],
)
def test_a_fence_is_judged_by_the_promise_of_the_protocol(
    asked: dict[str, str], order: str, may_overtake: bool
) -> None:
    """Brokers that let publications overtake do so regardless of the requested guarantee."""
    spec = experiment("multi_proxy", **asked)
    assert _order(spec, OurBrokers()) == {"order": order, "may_overtake": may_overtake}
    plain = load_experiment("demo")
    assert _order(plain, OurBrokers()) == {"order": "publisher", "may_overtake": False}


def test_topic_order_requires_a_topic() -> None:
    keys = {"guarantee.order": "topic"}
    with pytest.raises(SpecError, match=r"guarantee\.order = 'topic': delta_tree has no topics"):
        load_experiment("demo", Overrides(keys=keys))
    assert load_experiment("demo", Overrides(keys={**keys, "topic": "symbol"})).workload.topic


@pytest.mark.parametrize(
    "value, says",
    [
        ("publishr", "did you mean 'publisher'"),
        ("topics", "did you mean 'topic'"),
        (7, "order = 7"),
    ],
)
def test_an_unsupported_order_is_refused(value: Any, says: str) -> None:
    with pytest.raises(SpecError, match=says) as refusal:
        load_experiment("demo", Overrides(keys={"guarantee.order": value}))
    assert refusal.value.exit_status == 2


def test_stretches_need_a_promise_of_publisher_order() -> None:
    keys = {"load.records": "hist", "guarantee.order": "publisher"}
    with pytest.raises(SpecError, match="multi_proxy promises no publisher order"):
        load_experiment("mp22-arbiter", Overrides(keys=keys))
