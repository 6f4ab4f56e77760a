"""The settings of load generators, against the manifest and the specification.

The controller writes the specification and its digest before the run, and passes the digest to each
load generator. A load generator repeats its settings in a file, and the tables of the workload that
a verdict depends on. A specification that was changed with the manifest and the journal therefore
differs from a file of another process, even if the digest in that file was renewed.
"""

from collections.abc import Iterator
from typing import Any

from results.rules.terms import doubt
from results.witnesses.folder import MANIFEST, SETTING, WORKLOAD, ProcessFolder, RunFolder

_REPEATED = ("run_id", "specification_digest", "topology_digest", "deployment_id", "seed")
"""Settings that the manifest has by the same names."""
_JUDGED = ("calm", "guarantee", "bars")
"""Keys of the workload that a verdict depends on; older load generators do not repeat them."""
_SCHEMA = "pubsubctl/setting/1"


def doubts_about_settings(folder: RunFolder) -> Iterator[str]:
    """Yield a doubt for each missing setting, or one that manifest or workload contradict."""
    if folder.is_simulated or not folder.is_set:
        return
    for process in folder.processes:
        if process.is_load and not process.has(SETTING):
            yield doubt("missing_file", file=f"{process.place}/{SETTING}", other=MANIFEST)
        elif process.has(SETTING):
            yield from _check_setting(folder, process)


def _check_setting(folder: RunFolder, process: ProcessFolder) -> Iterator[str]:
    name, setting = f"{process.place}/{SETTING}", process.document(SETTING)
    records = (folder.workload.get("load") or {}).get("records", "full")
    pairs: list[tuple[str, str, Any, Any]] = [
        (MANIFEST, key, setting.get(key), folder.manifest.get(key)) for key in _REPEATED
    ]
    pairs += [
        (WORKLOAD, "protocol", setting.get("protocol"), folder.workload.get("protocol")),
        (WORKLOAD, "records", setting.get("records"), records),
        (process.place, "process", setting.get("process"), process.name),
        (MANIFEST, "schema", setting.get("schema"), _SCHEMA),
    ]
    workload = {"calm": False, **folder.workload}
    pairs += [(WORKLOAD, key, setting[key], workload.get(key)) for key in _JUDGED if key in setting]
    for other, subject, found, wanted in pairs:
        if found != wanted or type(found) is not type(wanted):
            yield doubt("disagree", one=name, other=other, what=subject, found=found, wanted=wanted)
