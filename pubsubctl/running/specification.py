"""The specification in a run folder, compared with the schemas of workload files."""

from pathlib import Path
from typing import Any

from pubsubctl.errors import IntegrityError


def check_specification(run: Path) -> None:
    """Check workload, topology and fault schedule of a run against the schemas.

    An unknown protocol is left aside, with the parameters of that protocol: the run may be of
    another program, or of servers of another system.

    Raises:
        IntegrityError: a value is invalid; names file, key, value and the nearest valid value.
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
