"""Lies of the manifest, alone and with the journal."""

import json
import tomllib
from typing import Any

from brokerd.protocols.registry import protocol_on, read_topology
from tests.helpers.false_witnesses.lies import (
    PUBLISHERS,
    SECOND,
    SUBSCRIBERS,
    Change,
    add_lie,
    journal_change,
    of_manifest,
    register_lie,
    renew_digests,
    with_digests,
)
from tests.helpers.forged_folders import RunFolder

# --- The manifest --------------------------------------------------------------------------------


def _manifest(**values: Any) -> Change:
    def change(run: RunFolder) -> None:
        with run.document("manifest.json") as manifest:
            for name, value in values.items():
                inner = manifest
                *way, last = name.split("__")
                for key in way:
                    inner = inner[key]
                inner[last] = value

    return change


for _name, _values, _says in (
    ("promises_no_order", {"promises__order": "none"}, "promises.order"),
    ("promises_gaps", {"promises__gaps": ["early release"]}, "promises.gaps"),
    ("promises_redelivery", {"promises__redelivers": True}, "promises.redelivers"),
    ("is_simulated", {"labels": {"brokers": "simulated"}}, "labels"),
    ("has_an_older_schema", {"schema": "pubsubctl/manifest/1"}, "schema"),
    ("has_another_protocol", {"protocol": "best_effort"}, "protocol"),
    ("has_a_broker_that_joined", {"joined": ["c3"]}, "joined"),
    ("has_another_topology", {"topology_digest": "0" * 32}, "topology_digest"),
    ("has_no_schedule", {"schedule": None}, "schedule"),
    ("has_another_drain", {"drain__took_s": 60.0}, "drain"),
    ("has_another_origin", {"origin_ns": 5}, "origin_ns"),
    ("has_another_role", {"roles__c2__host": "local1"}, "host of c2"),
    ("has_reasons", {"reasons": ["why"]}, "reasons"),
    ("was_saturated", {"headline__saturated": True}, "headline"),
    ("published_more", {"headline__published": 500}, "headline.published"),
    ("delivered_more", {"headline__delivered": 500}, "headline.delivered"),
    ("is_faster", {"headline__response_us__p99": 1.0}, "headline.response_us"),
    ("serves_faster", {"headline__service_us__p50": 1.0}, "headline.service_us"),
    ("acknowledges_faster", {"headline__acknowledged_us__max": 1.0}, "headline.acknowledged_us"),
    ("lost_no_session", {"headline__sessions_lost": 0}, "headline.sessions_lost"),
    ("has_other_findings", {"headline__online__owed": 1}, "headline.online"),
):
    add_lie(f"the_manifest_{_name}", _manifest(**_values), _says)


@register_lie("spec/topology.toml")
def the_topology_bears_more(run: RunFolder) -> None:
    text = run.path("spec/topology.toml").read_text()
    run.path("spec/topology.toml").write_text(text.replace("delta = 1", "delta = 2"))


@register_lie("log.jsonl")
def the_journal_has_no_end(run: RunFolder) -> None:
    with run.lines("log.jsonl") as rows:
        del rows[-1]


@register_lie("log.jsonl")
def a_phase_began_at_another_time(run: RunFolder) -> None:
    with run.lines("log.jsonl") as rows:
        next(row for row in rows if row.get("phase") == "drain")["at_ns"] += SECOND


@register_lie("clock.jsonl")
def a_clock_is_another(run: RunFolder) -> None:
    with run.lines("clock.jsonl") as rows:
        rows[1]["clock_id"] = "other"


@register_lie("clock.jsonl")
def a_clock_was_not_compared_afterwards(run: RunFolder) -> None:
    with run.lines("clock.jsonl") as rows:
        del rows[-1]


# --- Kinds of runs -------------------------------------------------------------------------------


def _without(name: str) -> Change:
    return journal_change(lambda manifest: manifest.pop(name))


for _name, _change, _says in (
    ("schema_is_older", of_manifest(schema="pubsubctl/manifest/1"), "schema"),
    ("system_is_another", of_manifest(system={"name": "mosquitto"}), "system"),
    ("run_is_a_history", of_manifest(labels={"history": "history"}), "labels.history"),
    ("broker_joined", of_manifest(joined=["c3"]), "disagree on topology_digest"),
    ("boot_is_another", journal_change(lambda m: m["clock"].update(boot_id="x")), "clock.boot_id"),
    ("parameters_are_missing", _without("parameters"), "disagree on parameters"),
):
    add_lie(f"the_{_name}_in_manifest_and_journal", _change, _says)


@register_lie("phase deploy")
def a_phase_is_missing_in_manifest_and_journal(run: RunFolder) -> None:
    journal_change(lambda manifest: manifest["phases"].pop(0))(run)
    with run.lines("log.jsonl") as rows:
        rows[:] = [row for row in rows if row.get("phase") != "deploy"]


@register_lie("length of drain")
def the_drain_ended_after_the_journal(run: RunFolder) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["phases"][-1]["t1_ns"] += 20 * SECOND

    journal_change(change)(run)


@register_lie("no line about promises")
def the_promises_are_missing_in_manifest_and_journal(run: RunFolder) -> None:
    _without("promises")(run)
    with run.lines("log.jsonl") as rows:
        del next(row for row in rows if row["what"] == "specification")["promises"]


for _name in ("cli.json", "placement.json"):
    add_lie(
        f"the_specification_has_no_{_name.partition('.')[0]}",
        with_digests(lambda run, name=_name: run.path(f"spec/{name}").unlink()),  # type: ignore[misc]
        f"spec/{_name} is missing",
    )

# --- Figures -------------------------------------------------------------------------------------


def _headline(**values: Any) -> Change:
    return journal_change(lambda manifest: manifest["headline"].update(values))


for _name, _change, _says in (
    ("were_on_time", _headline(lateness_p99_us=1.0), "headline.lateness_p99_us"),
    ("were_late", _headline(lateness_p99_us=9e8), "headline.lateness_p99_us"),
    ("were_later", _headline(lateness_p99_us=7_400.0), "publications.rec disagree on headline.lat"),
    ("left_a_broker_down", _headline(down=["c1"]), "headline.down"),
    ("left_a_fault", _headline(not_healed=["away"]), "headline.not_healed"),
    (
        "recovered_at_once",
        _headline(recovery={"us": 0.5, "is_over": True, "limit_us": 1.0}),
        "headline.recovery",
    ),
    ("needed_less_memory", _headline(broker_private_bytes_max=1), "broker_private_bytes_max"),
    ("sent_larger_payloads", of_manifest(payload_bytes=9_999), "payload_bytes"),
    ("did_not_wait_for_a_disk", of_manifest(without_fsync=["local9"]), "without_fsync"),
):
    add_lie(f"the_processes_{_name}", _change, _says)


@register_lie("headline.broker_cpu_us_per_message_mean")
def brokers_needed_less_time(run: RunFolder) -> None:
    """Lower the processor times of brokers in a run without a kill, in all files about faults."""
    for name in ("faults/faults.jsonl", "faults/plan.jsonl", "faults/log.jsonl", "log.jsonl"):
        with run.lines(name) as rows:
            rows[:] = [row for row in rows if row.get("step") not in ("kill-c2", "restart-c2")]
    for path in sorted(run.folder.glob("raw/*/c?/stats.jsonl")):
        with run.lines(path.relative_to(run.folder).as_posix()) as rows:
            for number, row in enumerate(rows):
                row["cpu_s"] = 0.5 * number
    _headline(broker_cpu_us_per_message_mean=0.1, broker_core_share_mean=0.5)(run)


@register_lie("drain.took_s")
def the_drain_was_shorter_than_it_took(run: RunFolder) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["phases"][-1]["t1_ns"] = manifest["phases"][-1]["t0_ns"] + 1_000

    journal_change(change)(run)


@register_lie("stats.jsonl and spec/workload.toml disagree on protocol")
def the_run_was_of_another_protocol(run: RunFolder) -> None:
    """Change the protocol in all files that name it, but not in the names of counters."""
    name = "best_effort"
    topology = read_topology(tomllib.loads(run.path("spec/topology.toml").read_text()), "")
    promises = protocol_on(topology, name).promises().as_mapping()
    parameters = json.loads(run.path("manifest.json").read_text())["parameters"]
    digest = topology.digest(name, parameters)
    replaced = {"protocol": name, "promises": promises, "topology_digest": digest}
    with_digests(
        lambda run: run.replace("spec/workload.toml", '"delta_tree"', f'"{name}"'),
    )(run)
    journal_change(lambda manifest: manifest.update(replaced))(run)
    specified = json.loads(run.path("manifest.json").read_text())["specification_digest"]
    for path in sorted(run.folder.glob("raw/*/*/setting.json")):
        with run.document(path.relative_to(run.folder).as_posix()) as setting:
            setting |= {"protocol": name, "topology_digest": digest}
            setting["specification_digest"] = specified
    renew_digests(run)


def _limit(text: str, *, is_load: bool = False) -> Change:
    def change(manifest: dict[str, Any]) -> None:
        manifest["limited_by"] = manifest["headline"]["limited_by"] = text
        manifest["headline"]["is_load_generator_limit"] = is_load

    return journal_change(change)


for _name, _change, _says in (
    ("a_window", _limit("window of the publishers"), "headline.limited_by"),
    ("an_idle_broker", _limit("broker c1: 99% of a core"), "stats.jsonl disagree on headline"),
    ("a_broker_that_is_none", _limit("broker c9: 99% of a core"), "raw/ disagree on headline"),
    ("a_load_generator", _limit("rate", is_load=True), "is_load_generator_limit"),
):
    add_lie(f"the_rate_was_limited_by_{_name}", _change, _says)

# --- Specifications that were changed with their digests -----------------------------------------


def _replace(name: str, old: str, new: str) -> Change:
    return with_digests(lambda run: run.replace(name, old, new))


for _name, _file, _old, _new in (
    ("order_is_weaker", "workload.toml", 'order = "publisher"', 'order = "none"'),
    ("guarantee_is_weaker", "workload.toml", '"exactly-once"', '"at-least-once"'),
    ("gaps_are_allowed", "workload.toml", "gapless = true", "gapless = false"),
    ("bars_are_lower", "workload.toml", "pair_min = 10", "pair_min = 1"),
    ("drain_may_be_longer", "workload.toml", 'drain = "20s"', 'drain = "90s"'),
    ("lateness_is_unlimited", "workload.toml", '"< 1s"', '"< 20s"'),
    ("run_is_calm", "workload.toml", "calm = false", "calm = true"),
    ("window_is_another", "workload.toml", "window = 16384", "window = 99"),
    ("nothing_must_be_absorbed", "faults.toml", "msgs_min = 2", "msgs_min = 0"),
    ("guard_is_another", "faults.toml", "brokers = 1", "brokers = 2"),
    ("command_line_is_another", "cli.json", '"small.toml"', '"tiny.toml"'),
):
    add_lie(
        f"the_{_name}_by_the_digest",
        _replace(f"spec/{_file}", _old, _new),
        "setting.json and",
    )


def _other_deployment(run: RunFolder) -> None:
    journal_change(lambda manifest: manifest.update(deployment_id="20260101T000000Z-000000"))(run)


add_lie("the_run_was_on_another_deployment", _other_deployment, "disagree on deployment_id")


@register_lie("disagree on topology_digest")
def the_parameters_are_others_by_the_digest(run: RunFolder) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["parameters"]["queue_limit"] = 5
        topology = read_topology(tomllib.loads(run.path("spec/topology.toml").read_text()), "")
        digest = topology.digest(manifest["protocol"], manifest["parameters"])
        manifest["topology_digest"] = digest

    journal_change(change)(run)


@register_lie("setting.json is missing")
def a_load_generator_left_no_settings(run: RunFolder) -> None:
    run.path(f"raw/{PUBLISHERS}/setting.json").unlink()


@register_lie("disagree on schema")
def the_schema_has_no_settings(run: RunFolder) -> None:
    of_manifest(schema="pubsubctl/manifest/3")(run)


@register_lie("disagree on seed")
def a_load_generator_had_another_seed(run: RunFolder) -> None:
    with run.document(f"raw/{SUBSCRIBERS}/setting.json") as setting:
        setting["seed"] += 1
