"""JSON Schemas of the files that users write, and tables of their keys for the manual.

The models that read the files define both, so that no key, default or limit is described twice.
"""

import json
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
WIDTH: Final = 100
_INDENT: Final = " " * 8


SESSION_MEANINGS: Final = {
    "heartbeat": "interval of heartbeats",
    "suspicion": "silence after which a peer is suspected; at least two heartbeats",
    "connect_timeout": "an attempt without an answer by then has failed",
    "slow_after": "a client that makes others wait this long is evicted",
}


def workload_schema() -> dict[str, Any]:
    """Return the JSON Schema of workload files."""
    from bench.spec.workload_model import Workload

    return Workload.model_json_schema(by_alias=True, mode="validation")


def sweep_schema() -> dict[str, Any]:
    from bench.spec.sweep import Sweep

    return Sweep.model_json_schema(by_alias=True, mode="validation")


def comparison_schema() -> dict[str, Any]:
    from bench.systems.comparison import ComparisonFile

    return ComparisonFile.model_json_schema(by_alias=True, mode="validation")


def faults_schema() -> dict[str, Any]:
    """Return the JSON Schema of fault schedules."""
    from fault_injection.schedule.schedule import ScheduleFile

    return ScheduleFile.model_json_schema(by_alias=True, mode="validation")


def inventory_schema() -> dict[str, Any]:
    """Return the JSON Schema of inventories."""
    from pubsubctl.inventory.inventory_schema import json_schema

    return json_schema()


def topology_schema() -> dict[str, Any]:
    """Return the JSON Schema of topologies, with the parameters of all protocols."""
    from brokerd.config import SessionParameters
    from brokerd.overlay.kinds import KINDS
    from brokerd.overlay.topology import SCHEMA, SESSION_KEYS
    from brokerd.protocols.registry import DEFINITIONS
    from brokerd.units import format_duration

    names = {"type": "array", "items": {"type": "string"}}
    pairs = {"type": "array", "items": {**names, "minItems": 2, "maxItems": 2}}
    text = {"type": "string"}

    def described(schema: Mapping[str, Any], about: str, example: str = "") -> dict[str, Any]:
        return {**schema, "description": about, **({"x-example": example} if example else {})}

    def parameters(definitions: Iterator[type]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for definition in definitions:
            for each in fields(definition):
                default = each.default if isinstance(each.default, str | int | float) else None
                if each.name != "delta":  # a key of [tree]
                    found.setdefault(each.name, {} if default is None else {"default": default})
        return {"type": "object", "properties": found, "additionalProperties": False}

    by_protocol = {name: parameters(iter([each.parameters])) for name, each in DEFINITIONS.items()}
    kind = {"enum": [*KINDS]}
    members = {"type": "object", "additionalProperties": names}
    properties = {
        "schema": described({"const": SCHEMA}, "version of the format", f'"{SCHEMA}"'),
        "name": described(text, "name of the topology: [a-z0-9-]", '"tree20"'),
        "kind": described(
            {"anyOf": [kind, {"type": "array", "items": kind, "minItems": 1}]},
            "kinds of overlays over these brokers; the first is the default",
            '["tree", "cells"]',
        ),
        "brokers": described(names, "names of brokers: [a-z0-9-]", '["b1", "b2"]'),
        "links": described(pairs, "links of the tree, or of the hierarchy", '[["b1", "b2"]]'),
        "tree": _section(
            {"delta": described(
                {"type": "integer", "minimum": 0, "default": 1},
                "failures in a row that the tree tolerates",
            )}
        ),
        "cells": _section(
            {
                "bundles": described(pairs, "pairs of cells that are linked", '[["p1", "b12"]]'),
                "members": described(
                    members, "brokers of the cells with several", 'b12 = ["b1", "b2"]'
                ),
                "links": described(pairs, "links between cells; all pairs without it"),
            }
        ),
        "hierarchy": _section(
            {
                "addresses": described(
                    {"type": "object", "additionalProperties": text},
                    "address of each broker, the outermost unit first",
                    'b1 = "0.1.3"',
                ),
                "storages": described(
                    {"type": "object"},
                    "level of each storage, for a protocol with storages",
                    "b1 = 0",
                ),
                "links": described(pairs, "links of the hierarchy", '[["b1", "b2"]]'),
                "max_links": described(
                    {"type": "array"}, "most links of level 0, 1, … of a broker", "[8, 3]"
                ),
                "changes": described({"type": "array"}, "written by `topology store`, `retire`"),
            }
        ),
        "bipartite": _section(
            {
                "proxies": described(names, "brokers with clients", '["b1", "b2"]'),
                "servers": described(names, "brokers that own topics", '["b3", "b4"]'),
                "edges": described(names, "access brokers of clients, without another role"),
            }
        ),
        "session": _section(
            {
                name: described(
                    {
                        **text,
                        "title": "duration",
                        "default": format_duration(getattr(SessionParameters(), f"{name}_ns")),
                    },
                    SESSION_MEANINGS[name],
                )
                for name in SESSION_KEYS
            }
        ),
        "parameters": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "all": parameters(each.parameters for each in DEFINITIONS.values()),
                **by_protocol,
            },
            "description": "parameters of all protocols, or of one",
        },
        "joined": described({"type": "array"}, "written by `topology join`"),
        "left": described(names, "written by `topology leave`"),
    }  # fmt: skip
    return {
        "title": "Topology",
        "type": "object",
        "properties": properties,
        "required": ["schema", "name", "kind", "brokers"],
        "additionalProperties": False,
    }


def _section(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "additionalProperties": False}


SCHEMAS: Final[Mapping[str, Callable[[], dict[str, Any]]]] = {
    "workload": workload_schema,
    "topology": topology_schema,
    "faults": faults_schema,
    "sweep": sweep_schema,
    "comparison": comparison_schema,
    "inventory": inventory_schema,
}
"""The kinds of files that users write."""


def schema_of(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of a kind of files, with defaults as they are written in a file."""
    found: dict[str, Any] = _with_texts({"$schema": DIALECT, **SCHEMAS[kind]()})
    return found


def _with_texts(value: Any) -> Any:
    """Return a schema with default durations and sizes as texts instead of numbers."""
    from brokerd.units import format_duration, format_size

    if isinstance(value, list):
        return [_with_texts(each) for each in value]
    if not isinstance(value, dict):
        return value
    found = {name: _with_texts(each) for name, each in value.items()}
    formats = {"duration": format_duration, "size": format_size}
    title = found.get("title")
    if isinstance(title, str) and title in formats and type(found.get("default")) is int:
        found["default"] = formats[title](found["default"])
    return found


@dataclass(frozen=True)
class KeyRow:
    """A key in a table of the manual.

    Attributes:
        path: the key with its tables, such as `phases.measure`.
        kind: the kind of value, with its limits.
        default: the default in the notation of TOML; without one "", or "required", with the table
            in which the key is required if a file may lack the table.
    """

    path: str
    kind: str
    default: str
    about: str
    example: str


def keys_of(kind: str) -> list[KeyRow]:
    """Return all described keys of a kind of files, in the order of the schema."""
    schema = schema_of(kind)
    return [*_rows(schema, schema, "")]


def _rows(
    table: Mapping[str, Any],
    whole: Mapping[str, Any],
    before: str,
    *,
    is_optional_table: bool = False,
) -> Iterator[KeyRow]:
    """Yield all described keys of a table.

    Args:
        before: the path of the table.
        is_optional_table: True if a file may lack the table, so that its keys are required only in
            the table.
    """
    for name, value in table.get("properties", {}).items():
        quoted = f'"{name}"' if "." in name else name
        about = str(value.get("description", ""))
        inner = _table_of(value, whole)
        if inner.get("properties") and inner.get("title") != "attributes":
            is_list = value.get("type") == "array"
            is_optional = is_optional_table or "anyOf" in value
            path = f"{before}{quoted}{'[]' if is_list else ''}."
            yield from _rows(inner, whole, path, is_optional_table=is_optional)
            continue
        is_required = name in table.get("required", ())
        needed = f"required in [{before[:-1]}]" if is_optional_table else "required"
        default = needed if is_required else _toml(value.get("default"))
        generic = "" if "default" in value and default else _example(value)
        example = str(value.get("x-example") or generic)
        if about:
            yield KeyRow(f"{before}{quoted}", _kind_of(value), default, about, example)


def _table_of(value: Mapping[str, Any], whole: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the table behind a reference, an optional value or a list; or the value itself."""
    if "$ref" in value:
        found: Mapping[str, Any] = whole["$defs"][value["$ref"].rpartition("/")[2]]
        return found
    if value.get("type") == "array" and "$ref" in value.get("items", {}):
        return _table_of(value["items"], whole)
    tables = [each for each in value.get("anyOf", ()) if "$ref" in each]
    return _table_of(tables[0], whole) if tables else value


def _kind_of(value: Mapping[str, Any]) -> str:
    options = [each for each in value.get("anyOf", ()) if each.get("type") != "null"]
    if value.get("title") == "names":
        return "name or list of names"
    if value.get("title") == "rate":
        return "rate"
    if "const" in value:
        return "text"
    if "enum" in value:
        return " | ".join(map(str, value["enum"]))
    if len(options) == 1:
        return _kind_of(options[0])
    if options:
        return " or ".join(dict.fromkeys(map(_kind_of, options)))
    if value.get("title") in ("duration", "size", "limit", "span", "attributes"):
        return str(value["title"])
    words = {"integer": "number", "string": "text", "boolean": "true | false", "array": "list",
             "object": "table"}  # fmt: skip
    kind = words.get(str(value.get("type", "")), "value")
    low, high = value.get("minimum"), value.get("maximum")
    if low is not None and high is not None:
        kind += f" from {low:,} to {high:,}"
    elif low is not None:
        kind += f" from {low:,}"
    return kind


def _example(value: Mapping[str, Any]) -> str:
    for each in (value, *value.get("anyOf", ())):
        if examples := each.get("examples"):
            return _toml(examples[0])
    return ""


def _toml(value: Any) -> str:
    """Return a default in the notation of TOML; "" for an absent or empty value."""
    return "" if value in (None, "", [], {}) and value is not False else json.dumps(value)


def parameter_lines() -> str:
    """Return the parameters of each protocol with their defaults, for a page of the manual."""
    tables = topology_schema()["properties"]["parameters"]["properties"]
    lines = []
    for protocol, table in tables.items():
        if protocol == "all":
            continue
        rows = [
            f"{name}\0=\0{json.dumps(each['default'])}" if "default" in each else name
            for name, each in table["properties"].items()
        ]
        lines.append(
            textwrap.fill(
                ", ".join(rows) or "none",
                WIDTH,
                initial_indent=f"    {protocol:14}",
                subsequent_indent=" " * 18,
                break_on_hyphens=False,
            ).replace("\0", " ")
        )
    return "\n".join(lines)


def key_table(kind: str) -> str:
    """Return the keys of a kind of files for a page of the manual, at most WIDTH columns wide."""
    return "\n".join(_row_text(row) for row in keys_of(kind))


def _row_text(row: KeyRow) -> str:
    about = row.about
    if row.example and row.example != row.default:
        about += f"; {row.example}"
    is_value = row.default and not row.default.startswith("required")
    default = f"default {row.default}" if is_value else row.default
    head = ", ".join(part for part in (row.kind, default) if part)
    first = textwrap.fill(
        f"{row.path}  ({head})", WIDTH, initial_indent="    ", subsequent_indent=_INDENT
    )
    second = textwrap.fill(
        about, WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT, break_long_words=False
    )
    return f"{first}\n{second}"
