"""Tests of the JSON Schemas of users' files, and of the tables of keys in the manual."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.spec.sweep import Sweep
from bench.spec.workload_model import Workload
from brokerd.model.predicate import MAXIMUM_DEPTH, MAXIMUM_TERMS
from brokerd.model.predicate_text import MAXIMUM_TEXT, parse_predicate
from brokerd.overlay import bipartite, cells, hierarchy, topology
from pubsubctl.commands.names import SETTABLE_KEYS
from pubsubctl.commands.project import scaffold_files
from pubsubctl.file_schemas import SCHEMAS, key_table, keys_of, schema_of
from tests.pubsubctl.conftest import Call

ROOT = Path(__file__).parents[2]
FILES = {
    "workload": "bench/workloads",
    "topology": "bench/topologies",
    "sweep": "bench/sweeps",
    "comparison": "bench/comparisons",
    "faults": "fault_injection",
    "inventory": "inventories",
}
TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "integer": (int,), "boolean": (bool,),
    "number": (int, float), "null": (),
}  # fmt: skip


def faults_in(value: Any, schema: Any, whole: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """Yield a value's violations of a schema, for the part of JSON Schema that our schemas use."""
    if "$ref" in schema:
        yield from faults_in(value, whole["$defs"][schema["$ref"].rpartition("/")[2]], whole, at)
    if "anyOf" in schema and all([*faults_in(value, one, whole, at)] for one in schema["anyOf"]):
        yield f"{at}: {value!r} is none of {schema['anyOf']}"
    if "const" in schema and value != schema["const"]:
        yield f"{at}: {value!r} is not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {value!r} is not in {schema['enum']}"
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    allowed = tuple(each for kind in kinds for each in TYPES[kind])
    is_odd_bool = isinstance(value, bool) and "boolean" not in kinds
    if kinds and (not isinstance(value, allowed) or is_odd_bool):
        yield f"{at}: {value!r} is no {kinds}"
    low, high = schema.get("minimum", value), schema.get("maximum", value)
    if isinstance(value, int | float) and not low <= value <= high:
        yield f"{at}: {value} is out of range"
    if isinstance(value, list):
        for number, each in enumerate(value):
            yield from faults_in(each, schema.get("items", {}), whole, f"{at}[{number}]")
    if isinstance(value, dict):
        known = schema.get("properties", {})
        more = schema.get("additionalProperties", True)
        missing = [name for name in schema.get("required", ()) if name not in value]
        yield from (f"{at}: {name} is missing" for name in missing)
        for name, each in value.items():
            if name not in known and more is False:
                yield f"{at}: {name} is unknown"
            inner = known.get(name, more if isinstance(more, dict) else {})
            yield from faults_in(each, inner, whole, f"{at}.{name}")


def shipped(kind: str) -> list[Path]:
    """Return the files of a kind that the program ships, in the present version of the format."""
    found = sorted((ROOT / FILES[kind]).glob("*.toml"))
    return [path for path in found if f"pubsubctl/{kind}" in path.read_text("utf-8")]


@pytest.mark.parametrize("kind", SCHEMAS)
def test_a_schema_describes_all_files_of_its_kind_that_come_with_the_program(kind: str) -> None:
    schema = schema_of(kind)
    assert shipped(kind)
    for path in shipped(kind):
        assert [*faults_in(tomllib.loads(path.read_text("utf-8")), schema, schema)] == [], path


@pytest.mark.parametrize(
    "kind, line, fault",
    [
        ("workload", "colour = 1", ".colour"),
        ("workload", "seed = -1", "out of range"),
        ("workload", "[phases]\nmeasure = 30", "is no"),
        ("topology", "[tree]\ndelat = 1", "delat is unknown"),
        ("sweep", "repetitions = 0", "out of range"),
    ],
)
def test_a_schema_refuses_what_the_program_refuses(kind: str, line: str, fault: str) -> None:
    schema = schema_of(kind)
    found = " ".join(faults_in(tomllib.loads(line), schema, schema))
    assert fault.removeprefix(".") in found


def test_defaults_in_a_schema_are_as_in_a_file() -> None:
    phases = schema_of("workload")["$defs"]["Phases"]["properties"]
    assert (phases["warmup"]["default"], phases["drain"]["default"]) == ("2s", "30s")
    for kind in ("workload", "sweep", "faults", "comparison"):
        schema = schema_of(kind)
        for name, table in schema.get("$defs", {}).items():
            for key, value in table.get("properties", {}).items():
                if not isinstance(value.get("default"), dict | None):
                    assert [*faults_in(value["default"], value, schema)] == [], (kind, name, key)


@pytest.mark.parametrize("kind, model", [("workload", Workload), ("sweep", Sweep)])
def test_each_key_has_a_meaning_in_the_manual(kind: str, model: Any) -> None:
    told = {row.path.split(".")[0].removesuffix("[]") for row in keys_of(kind)}
    keys = {info.alias or name for name, info in model.model_fields.items() if not info.exclude}
    assert keys <= told
    tables = schema_of(kind).get("$defs", {}).values()
    plain = [
        (table["title"], name)
        for table in tables
        for name, value in table["properties"].items()
        if "description" not in value
    ]
    assert plain == []


def test_the_completed_keys_are_those_of_the_models() -> None:
    workload = [row.path.replace("[]", "") for row in keys_of("workload")]
    apart = ("schema", "name", "protocol", "topology")
    known = [key for key in workload if '"' not in key and key not in apart]
    tables = ("tree", "cells", "hierarchy", "bipartite", "session")
    overlay = [row.path for row in keys_of("topology") if row.path.partition(".")[0] in tables]
    assert [*SETTABLE_KEYS] == [*known, *(f"topology.{key}" for key in overlay)]


def test_the_schema_of_topologies_has_the_keys_that_the_program_reads() -> None:
    properties = schema_of("topology")["properties"]
    assert {*properties} == {*topology._KEYS, *topology.KINDS}
    for kind, module in (("cells", cells), ("hierarchy", hierarchy), ("bipartite", bipartite)):
        assert {*properties[kind]["properties"]} == {*module._KEYS}
    assert {*properties["session"]["properties"]} == {*topology.SESSION_KEYS}


@pytest.mark.parametrize("topic", ["workloads", "topologies", "sweeps", "predicates"])
def test_a_page_of_the_manual_has_its_tables_and_fits_the_screen(call: Call, topic: str) -> None:
    text = call("help", topic).out
    assert "@" not in text.replace("@keys", "@")
    assert max(map(len, text.splitlines())) <= 100


def test_a_table_names_kind_default_meaning_and_example() -> None:
    table = key_table("workload")
    assert (
        '    phases.warmup  (duration, default "2s")\n        load before the measurement\n'
        in table
    )
    assert (
        "    publishers[].rate  (rate, required)\n        rate of each publisher; or a shape"
        in table
    )


def selects(text: str, **attributes: Any) -> bool:
    any_of = parse_predicate(text).any_of
    return any(all(test.holds(attributes) for test in each) for each in any_of)


@pytest.mark.parametrize(
    "text, attributes, is_selected",
    [
        ("symbol = 'IBM'", {"symbol": "IBM"}, True),
        ("price = 1", {"price": 1.0}, True),
        ("symbol != 'IBM'", {"symbol": 1}, False),
        ("symbol != 'IBM'", {}, False),
        ("symbol in ('IBM', 'SAP')", {"symbol": "SAP"}, True),
        ("symbol prefix 'SYMBOL0'", {"symbol": "SYMBOL007"}, True),
        ("symbol suffix '7'", {"symbol": "SYMBOL007"}, True),
        ("symbol contains 'MBO'", {"symbol": "SYMBOL007"}, True),
        ("price exists", {"price": 0}, True),
        ("not symbol exists", {}, True),
        ("NOT symbol EXISTS", {}, True),
        ("not price > 100", {}, False),
        ("not volume < 100", {"volume": 100}, True),
        ("not (symbol = 'IBM' or price > 100)", {"symbol": "SAP", "price": 5}, True),
        ("name = 'it''s'", {"name": "it's"}, True),
    ],
)
def test_the_page_about_filters_is_true(
    text: str, attributes: dict[str, Any], is_selected: bool
) -> None:
    assert selects(text, **attributes) is is_selected


def test_the_page_about_filters_states_the_limits_of_the_program(call: Call) -> None:
    page = call("help", "predicates").out
    assert f"{MAXIMUM_TEXT:,} characters and {MAXIMUM_TERMS} tests" in page
    assert f"at most {MAXIMUM_DEPTH} deep" in page


def test_a_schema_is_printed_or_written(call: Call, project: Path) -> None:
    assert call("schema").out.split() == [*SCHEMAS]
    assert json.loads(call("schema", "sweep").out) == schema_of("sweep")
    call("schema", "topology", "-o", "new/topology.json")
    assert json.loads(Path("new/topology.json").read_text("utf-8")) == schema_of("topology")
    answer = call("schema", "workloads")
    assert answer.status == 2
    assert "no kind called 'workloads'; did you mean 'workload'?" in answer.err


def test_files_of_a_new_project_name_their_schema(call: Call, project: Path) -> None:
    call("init", "mine")
    for name, _ in scaffold_files():
        path = Path("mine", name)
        if path.name != "pubsubctl.toml":
            first = path.read_text("utf-8").splitlines()[0]
            target = (path.parent / first.removeprefix("#:schema ")).resolve()
            assert json.loads(target.read_text("utf-8"))["$schema"]
            schema = schema_of(target.stem)
            assert [*faults_in(tomllib.loads(path.read_text("utf-8")), schema, schema)] == []


def test_workloads_are_checked_without_a_run(call: Call, project: Path) -> None:
    answer = call("workload", "lint", "demo", "chain3")
    assert answer.status == 0
    assert "demo.toml: ok, publishers: 4, subscribers: 5, delta_tree on demo (10" in answer.out
    text = (ROOT / "bench/workloads/demo.toml").read_text()
    Path("own.toml").write_text(text.replace('"60s"', '"60"'))
    answer = call("workload", "lint", "demo", "own.toml", "dmo")
    assert answer.status == 2
    assert "own.toml: phases.measure = " in answer.err
    assert "dmo" in answer.err
    assert answer.out.count(": ok, ") == 1
    assert call("workload", "lint", "chain3", "--protocol", "gryphn").status == 2


def test_one_topology_carries_a_tree_and_cells(call: Call, project: Path) -> None:
    call("topology", "gen", "star", "--brokers", "5", "--kinds", "cells,tree", "-o", "both.toml")
    for protocol in ("gryphon", "durable", "delta_tree"):
        assert call("topology", "lint", "both.toml", "--protocol", protocol).status == 0
    assert 'kind = "cells"' in call("topology", "gen", "chain", "--kinds", "cells").out
    wrong = (("tree,cels", "did you mean 'cells'"), ("tree,tree", "stands there twice"))
    for kinds, said in wrong:
        answer = call("topology", "gen", "tree", "--kinds", kinds)
        assert answer.status == 2
        assert said in answer.err
    answer = call("topology", "gen", "bipartite", "--kinds", "tree,cells")
    assert "a topology of kind bipartite has no tree" in answer.err
