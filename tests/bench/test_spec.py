"""Tests of workload files: round trips of valid files, and errors of invalid files."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.load.publishers import PublisherSetting
from bench.load.subscribers import SubscriberSetting
from bench.spec.keys import Overrides
from bench.spec.spec import WORKLOADS, ExperimentSpec, load_experiment, load_topology
from bench.spec.validation import SpecError
from bench.spec.values import parse_rate
from brokerd.text import toml_text
from brokerd.units import format_duration, format_size, parse_duration_ns, parse_size_bytes
from results.rules.expectation import parse_predicate

GOOD = """
schema = "pubsubctl/workload/1"
name = "two"
topology = "chain3"
protocol = "delta_tree"
[phases]
warmup = "1s"
measure = "2s"
[attributes]
sets = 20
symbol = { choose = 4 }
[[publishers]]
at = "c1"
count = 2
rate = "10/s"
[[subscribers]]
at = ["c1", "c3"]
filter = "symbol = 'SYMBOL001'"
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "work.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", sorted(path.stem for path in WORKLOADS.glob("*.toml")))
def test_a_resolved_workload_reads_back_as_the_same_experiment(name: str, tmp_path: Path) -> None:
    spec = load_experiment(name)
    again = load_experiment(written(tmp_path, spec.workload_toml()))
    assert again.workload_mapping() == spec.workload_mapping()
    assert again.publisher_plans() == spec.publisher_plans()
    assert again.subscriber_plans() == spec.subscriber_plans()
    topology = tmp_path / "topology.toml"
    topology.write_text(spec.topology_toml(), encoding="utf-8")
    assert load_topology(topology) == spec.topology


def test_the_demo_publishes_6000_in_its_measured_minute_and_owes_every_pair_its_bar() -> None:
    spec = load_experiment("demo")
    assert spec.workload.phases.measure == 60 * 10**9
    plans = spec.publisher_plans()
    rates = [plan.entry.rate.per_second for plan in plans]
    assert sum(rate * 60 for rate in rates if rate) == 6000
    assert {plan.broker for plan in plans} == {"p1"}
    assert {plan.broker for plan in spec.subscriber_plans()} == {"s1", "s2", "s3", "s4", "s5"}


def test_the_demo_has_subscribers_for_everything_and_for_a_tenth() -> None:
    """A tenth also meets, on average, the bar of deliveries per pair."""
    spec = load_experiment("demo")
    sets = spec.attribute_sets()
    shares = {
        plan.broker: sum(map(parse_predicate(plan.entry.predicate).holds, sets)) / len(sets)
        for plan in spec.subscriber_plans()
    }
    assert shares["s1"] == shares["s3"] == 1.0
    assert 0.05 <= min(shares.values()) <= 0.15
    per_publisher = 25 * 60
    assert min(shares.values()) * per_publisher >= spec.workload.bars.deliveries_per_pair_min


def test_plans_are_numbered_and_named_in_file_order(tmp_path: Path) -> None:
    spec = load_experiment(written(tmp_path, GOOD))
    assert [(plan.index, plan.name) for plan in spec.publisher_plans()] == [
        (0, "c1-pub-1"), (1, "c1-pub-2"),
    ]  # fmt: skip
    assert [(plan.name, plan.broker) for plan in spec.subscriber_plans()] == [
        ("c1-sub-1", "c1"), ("c3-sub-1", "c3"),
    ]  # fmt: skip


def test_command_line_values_override_the_file_and_are_recorded(tmp_path: Path) -> None:
    typed = Overrides(rate="1.5k/s", measure="90s", seed=9, publishers=5, protocol="best_effort")
    spec = load_experiment(written(tmp_path, GOOD), typed)
    assert spec.workload.phases.measure == 90 * 10**9
    assert (spec.seed, spec.protocol, len(spec.publisher_plans())) == (9, "best_effort", 5)
    assert spec.publisher_plans()[0].entry.rate.per_second == 1500
    assert spec.overrides == typed.as_mapping()
    assert 'measure = "90s"' in spec.workload_toml()


@pytest.mark.parametrize(
    "old, new, complaint",
    [
        ('name = "two"', 'nam = "two"', "unknown key 'nam'; did you mean 'name'?"),
        ('name = "two"', "", "key 'name' is missing"),
        ('name = "two"', 'name = "a:b"', "name = 'a:b': letters"),
        (
            "workload/1",
            "workload/9",
            "'pubsubctl/workload/9'; this reads 'pubsubctl/workload/1'",
        ),
        ("workload/1", "topology/2", "'pubsubctl/workload/1', and the file is of kind topology"),
        ('"delta_tree"', '"delta_tre"', "protocol = 'delta_tre'; did you mean 'delta_tree'?"),
        ('"chain3"', '"chain4"', "no topology called 'chain4'; did you mean 'chain3'?"),
        ("count = 2", "cuont = 2", "publishers[0]: unknown key 'cuont'; did you mean 'count'?"),
        ("count = 2", "count = 0", "publishers[0].count = 0: "),
        ("count = 2", "count = true", "publishers[0].count = true: a whole number"),
        ("count = 2", "count = 2026-01-01", "publishers[0].count = 2026-01-01: a whole number"),
        ('name = "two"', 'name = "two"\nseed = 1.5', "seed = 1.5: a whole number"),
        ('name = "two"', 'name = "two"\nseed = -1', "seed = -1: at least 0"),
        ('name = "two"', 'name = "two"\ncalm = "yes"', "calm = 'yes': true or false"),
        ("[[publishers]]", "[publishers]", "publishers: a list of tables"),
        ('"delta_tree"', '"DELTA_TREE"', "work.toml: protocol = 'DELTA_TREE'; did you mean"),
        ('"chain3"', '"Chain3"', "work.toml: topology: no topology called 'Chain3'; did you mean"),
        (
            '"chain3"',
            '"../x.toml"',
            "work.toml: topology: topology file '../x.toml' does not exist",
        ),
        ('"chain3"', '".."', "work.toml: topology: topology file '..' is a folder"),
        (
            'rate = "10/s"',
            'rate = [{ for = "5s", rate = "5/s", every = true }]',
            "not { for = '5s', rate = '5/s', every = true }",
        ),
        ('rate = "10/s"', 'rate = "٥٠/s"', "publishers[0].rate = '٥٠/s': a rate has a number"),
        ('measure = "2s"', 'measure = "٢s"', "phases.measure = '٢s': a duration has a number"),
        ("count = 2", 'size = "100"', "publishers[0].size = '100': a size has a number and a unit"),
        ("count = 2", 'size = "1MiB"', "publishers[0].size = '1MiB': at most 256KiB"),
        ("count = 2", 'arrivals = "possion"', "did you mean 'poisson'?"),
        ('rate = "10/s"', "rate = 10", "publishers[0].rate = 10: a rate has a number and a period"),
        ('rate = "10/s"', 'rate = "0/s"', "more than nothing"),
        ('rate = "10/s"', "", "key 'publishers[0].rate' is missing"),
        ('at = "c1"', 'at = "c4"', "publishers[0].at = 'c4': topology 'chain3' has no such broker"),
        ('["c1", "c3"]', '["c1", "3c"]', "subscribers[0].at = '3c'"),
        ('["c1", "c3"]', "[]", "subscribers[0].at"),
        ("count = 2", 'failover = ["c4"]', "publishers[0].failover = 'c4': topology 'chain3' has"),
        ("count = 2", 'failover = ["c2"]', "a publisher of delta_tree is another source"),
        ('"c3"]', '"c3"]\nfailover = ["c2"]', "subscribers[0].failover: what a broker of delta_"),
        ('"c3"]', '"c3"]\nacknowledge = "auto"', "acknowledge = 'auto': needs own_process = true"),
        (
            '"c3"]',
            '"c3"]\nown_process = true\nacknowledge = "auto"',
            "subscribers[0].acknowledge = 'auto': brokers of delta_tree keep no committed",
        ),
        ('warmup = "1s"', 'warmup = "1 sec"', "phases.warmup = '1 sec': a duration has a number"),
        ('measure = "2s"', 'measure = "0s"', "nothing is measured in no time"),
        (
            'measure = "2s"',
            'mesure = "2s"',
            "phases: unknown key 'mesure'; did you mean",
        ),
        ("[phases]", 'duration = "5s"\n[phases]', "'duration'; did you mean 'phases.measure'?"),
        ("[phases]", 'drain = "5s"\n[phases]', "'drain'; did you mean 'phases.drain'?"),
        ("[phases]", 'colours = "5s"\n[phases]', "'colours'; known: schema, name"),
        ("symbol =", "fence =", "an attribute cannot be called 'fence'"),
        ("{ choose = 4 }", "{ chose = 4 }", "'chose' = 4; did you mean 'choose'?"),
        ("{ choose = 4 }", "{ uniform = [5, 1] }", "attributes: symbol: uniform = [low, high]"),
        ("{ choose = 4 }", "{ sequence = -1 }", "sequence = START counts up from 0"),
        ("{ choose = 4 }", "{ sequence = 1 }", "'symbol' counts publications; no filter may"),
        ("symbol =", "a = { sequence = 1 }\nb = { sequence = 1 }\nsymbol =", "a and b count"),
        ("{ choose = 4 }", "4", "attributes: symbol: expected { choose"),
        (
            "{ choose = 4 }",
            "{ choose = [1, nan] }",
            "attributes.symbol.choose[1] = nan is not a finite number",
        ),
        (
            "{ choose = 4 }",
            f"{{ choose = [{1 << 63}] }}",
            "symbol.choose[0] = 9223372036854775808 does not fit",
        ),
        (
            "{ choose = 4 }",
            f"{{ choose = ['{'a' * 257}'] }}",
            "symbol: a string is longer than 256",
        ),
        ("sets = 20", "sets = 0", "sets = 0"),
        ("symbol = 'S", "symbl = 'S", "no publication has an attribute 'symbl'; did you mean"),
        ("symbol = 'S", "symbol ~ 'S", "subscribers[0].filter"),
        ("symbol = 'S", "symbol == 'S", "equality is written with one ="),
        ("symbol = 'S", "symbol = S or symbol = 'S", "in single quotes: 'S'"),
        ("symbol = 'S", "symbol = 5 or symbol = 'S", "has texts, and 5 is none; write '5' in"),
        ("{ choose = 4 }", "{ uniform = [1, 5] }", "'symbol' has numbers, and 'SYMBOL"),
        ('schema = "pubsubctl/workload/1"', "", "missing; write schema = 'pubsubctl/workload/1'"),
        ("[phases]", "seed = x\n[phases]", "no value; a text stands in quotes (at line"),
        ("[phases]", "[bars]\npairs = 3\n[phases]", "bars: unknown key 'pairs'"),
        ("[phases]", '[guarantee]\norder = "causal"\n[phases]', "guarantee.order = 'causal'"),
        ("[phases]", '[thresholds]\n"loadgen.late" = "< 1s"\n[phases]', "'loadgen.lateness_p99'?"),
        ("[phases]", '[thresholds]\n"loadgen.lateness_p99" = "5ms"\n[phases]', "< 50ms"),
        ("[phases]", '[expectations]\n"latency.p98" = "< 5ms"\n[phases]', "'latency.p99'?"),
        ("[phases]", '[expectations]\n"latency.p99" = "5ms"\n[phases]', "< 50ms"),
        ("[phases]", '[expectations]\n"latency.p99" = "< 5"\n[phases]', "a number and a unit"),
        ("[phases]", '[expectations]\n"delivered.rate" = "> 5"\n[phases]', "a period"),
        ("[phases]", "seed = -1\n[phases]", "seed = -1"),
        ("{ choose = 4 }", "{ choose = '4' }", "choose = '4': a number of values, or a list"),
        ("[phases]", "[phases]\n[phases]", "table [phases] is there twice (at line"),
        ("[phases]", "{}\n[phases]", "neither a comment, KEY = VALUE nor [TABLE] (at line"),
        ("[phases]", "[phases", "line"),
    ],
)
def test_a_slip_is_named_with_file_key_value_and_the_valid_values(
    tmp_path: Path, old: str, new: str, complaint: str
) -> None:
    assert old in GOOD
    path = written(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(SpecError) as caught:
        load_experiment(path)
    assert complaint in str(caught.value)
    assert "topology called" in complaint or str(path) in str(caught.value)
    assert caught.value.exit_status == 2


def test_typed_values_are_checked_like_the_files() -> None:
    for typed, complaint in (
        (Overrides(rate="25", is_typed=True), "--rate = '25': a rate has a number"),
        (
            Overrides(measure="1 hour", is_typed=True),
            "--duration = '1 hour': a duration has a number",
        ),
        (
            Overrides(protocol="best-effort", is_typed=True),
            "--protocol = 'best-effort'; did you mean 'best_",
        ),
        (Overrides(records="ful", is_typed=True), "--records = 'ful'; did you mean 'full'?"),
        (Overrides(measure="1 hour"), "phases.measure = '1 hour', in place of the file's"),
        (Overrides(topology="demmo"), "did you mean 'demo'?"),
        (Overrides(keys={"phases.measure": 5}), "phases.measure = 5, in place of the file's"),
        (Overrides(keys={"phases.mesure": "5s"}), "phases.mesure: phases: unknown key 'mesure'"),
        (Overrides(keys={"subscribers[1].count": "x"}), "subscribers[1].count = 'x', in place"),
    ):
        with pytest.raises(SpecError) as caught:
            load_experiment("demo", typed)
        assert complaint in str(caught.value)
        assert "\n" not in str(caught.value), "an option that holds for all entries is named once"


def test_an_unknown_workload_names_the_nearest() -> None:
    with pytest.raises(SpecError, match="did you mean 'demo'"):
        load_experiment("dem")
    with pytest.raises(SpecError, match="does not exist"):
        load_experiment("nowhere/at-all.toml")


@given(st.integers(0, 10**15))
def test_durations_and_sizes_survive_being_written(number: int) -> None:
    assert parse_duration_ns(format_duration(number)) == number
    assert parse_size_bytes(format_size(number)) == number


@pytest.mark.parametrize("text", ["25/s", "0.5/s", "3/min", "1000000/s", "7.25/s", "1/h", "max"])
def test_rates_survive_being_written(text: str) -> None:
    rate = parse_rate(text)
    assert parse_rate(str(rate)) == rate


def test_a_rate_of_thousands_is_the_number_it_means() -> None:
    assert parse_rate("1.5k/s") == parse_rate("1500/s")
    assert parse_rate("60/min") == parse_rate("1/s")


SCALARS = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False), st.text(st.characters(exclude_categories=("Cs",))),
)  # fmt: skip
TABLES = st.recursive(
    st.dictionaries(st.text(st.characters(exclude_categories=("Cs",)), min_size=1), SCALARS),
    lambda inner: st.dictionaries(
        st.text(min_size=1, alphabet="ab.é "),
        st.one_of(SCALARS, st.lists(SCALARS), inner, st.lists(inner, min_size=1)),
    ),
    max_leaves=8,
)


@given(TABLES)
def test_a_written_toml_table_reads_back_unchanged(table: dict[str, Any]) -> None:
    assert tomllib.loads(toml_text(table)) == table


def test_a_label_may_rename_the_experiment() -> None:
    spec: ExperimentSpec = load_experiment("smoke", labels={"experiment": "night.1"})
    assert spec.name == "night.1"
    with pytest.raises(SpecError):
        load_experiment("smoke", labels={"experiment": "a b"})


def test_a_filter_with_a_number_is_a_filter_for_each_subscriber(tmp_path: Path) -> None:
    numbered = GOOD.replace('at = ["c1", "c3"]', 'at = ["c1", "c3"]\ncount = 3').replace(
        "SYMBOL001", "SYMBOL{number}"
    )
    spec = load_experiment(written(tmp_path, numbered))
    found = {plan.name: plan.entry.predicate for plan in spec.subscriber_plans()}
    assert found == {
        f"{broker}-sub-{n + 1}": f"symbol = 'SYMBOL00{n}'"
        for broker in ("c1", "c3")
        for n in range(3)
    }
    again = load_experiment(written(tmp_path, spec.workload_toml()))
    assert again.subscriber_plans() == spec.subscriber_plans()


@pytest.mark.parametrize(
    "entry, complaint",
    [
        ('at = "c9"', "subscribers[1].at = 'c9': topology"),
        ('at = "c3"\nfilter = "prce > 1"', "subscribers[1].filter = 'prce > 1': no publication"),
        ('at = "c3"\nfailover = "c1"', "subscribers[1].failover: "),
    ],
)
def test_an_entry_after_a_numbered_one_has_its_place_in_the_file(
    tmp_path: Path, entry: str, complaint: str
) -> None:
    numbered = GOOD.replace('at = ["c1", "c3"]', 'at = ["c1", "c3"]\ncount = 3').replace(
        "SYMBOL001", "SYMBOL{number}"
    )
    with pytest.raises(SpecError) as caught:
        load_experiment(written(tmp_path, f"{numbered}\n[[subscribers]]\n{entry}\n"))
    assert complaint in str(caught.value)


def test_a_hundred_subscribers_want_a_hundredth_each_no_two_the_same() -> None:
    spec = load_experiment("fan100")
    wanted = [parse_predicate(plan.entry.predicate).holds for plan in spec.subscriber_plans()]
    assert len(wanted) == 100
    for attributes in spec.attribute_sets():
        assert sum(holds(attributes) for holds in wanted) == 1


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("SYMBOL001", "SYMBOL{nubmer}", "{nubmer} is not a placeholder; did you mean"),
        (
            "[[publishers]]",
            "[load]\nsubscriber_processes = 3\n[[publishers]]",
            "= 3: at most 2, one",
        ),
        (
            "[[publishers]]",
            "[load]\npublisher_processes = 0\n[[publishers]]",
            "at least 1",
        ),
        (
            "[[publishers]]",
            '[load]\nrecords = "some"\n[[publishers]]',
            "load.records = 'some'; did you mean 'sampled'?",
        ),
        ("[[publishers]]", "[load]\nprocesses = 2\n[[publishers]]", "unknown key 'processes'"),
        ("choose = 4", "cycle = [4]", "cycle = N takes from 1 to 1000000"),
        ("choose = 4", "cylce = 4", "did you mean 'cycle'"),
    ],
)
def test_slips_about_load_generators_and_numbers_are_named(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    with pytest.raises(SpecError) as caught:
        load_experiment(written(tmp_path, GOOD.replace(old, new)))
    assert said in str(caught.value)


def test_stretches_are_refused_where_another_order_than_the_publishers_counts() -> None:
    """Stretches count deliveries per subscriber and source, without the order between sources."""
    assert load_experiment("demo", Overrides(records="hist")).workload.load.records == "hist"
    with pytest.raises(SpecError, match=r"proxies.toml: load.records = 'hist': only \"full\" here"):
        load_experiment("proxies", Overrides(records="hist"))
    with pytest.raises(SpecError, match="which note each transaction"):
        load_experiment("durable", Overrides(records="sampled"))


def test_every_key_of_a_client_reaches_its_load_generator() -> None:
    spec = load_experiment("demo")
    place = {"name": "c", "client": "c.1", "broker": "b", "address": "localhost:1"}
    entry = spec.publisher_plans()[0].entry
    publisher = PublisherSetting.from_mapping({"index": 0, **place, **entry.load_keys()})
    assert publisher.rate == entry.rate.as_pair()
    assert {*entry.load_keys()} >= {"rate", "size_bytes", "arrivals", "window"}
    wanted = spec.subscriber_plans()[0].entry
    subscriber = SubscriberSetting.from_mapping({**place, **wanted.load_keys()})
    assert (subscriber.predicate, subscriber.own_process) == (wanted.predicate, False)


@pytest.mark.parametrize("rate, pair", [("25/s", (25, 1)), ("1/min", (1, 60)), ("max", (0, 1))])
def test_a_rate_is_a_pair_of_whole_numbers(rate: str, pair: tuple[int, int]) -> None:
    assert parse_rate(rate).as_pair() == pair
