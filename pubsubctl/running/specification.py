"""The specification in a run folder, held to the whole schema of what users write."""

from pathlib import Path
from typing import Any

from pubsubctl.errors import IntegrityError


def check_specification(run: Path) -> None:
    """Make sure that workload, topology and fault schedule of a run could have been written so.

    A protocol that this program does not know is left aside, with what only it can read: the run
    may be of another program, or of servers that are not ours.

    Raises:
        IntegrityError: one could not; names file, key and value, and the nearest valid one.
    """
    from bench.spec.spec import read_toml, validated
    from bench.spec.workload_model import Workload
    from brokerd.errors import ConfigError
    from brokerd.protocols.registry import DEFAULT, definition_of, read_topology
    from fault_injection.schedule.schedule import load_schedule

    folder = run / "spec"
    workload, topology = folder / "workload.toml", folder / "topology.toml"
    if not workload.is_file():
        return
    try:
        values: dict[str, Any] = read_toml(workload)
        is_ours = True
        if isinstance(protocol := values.get("protocol"), str):
            try:
                definition_of(protocol)
            except ConfigError:
                is_ours = False
                values["protocol"] = DEFAULT
        validated(Workload, values, str(workload))
        if is_ours and topology.is_file():
            read_topology(read_toml(topology), str(topology))
        if (faults := folder / "faults.toml").is_file():
            load_schedule(faults)
    except ConfigError as error:
        raise IntegrityError(str(error)) from None
