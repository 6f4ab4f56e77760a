"""Obstacles to a run on a system under test: server, client library, version."""

from bench.systems.boundary import WrongSettings
from bench.systems.configuration import NotInstalled, load_configuration
from pubsubctl.doctor.health_check import Finding

ID = "system"


def check_system(name: str) -> list[Finding]:
    """Check if the servers of a configuration can be started here.

    Raises:
        SpecError, WrongDriver: the configuration itself is invalid.
    """
    try:
        found = load_configuration(name)
    except NotInstalled as error:
        return [Finding(ID, "fail", error.missing, error.remedy)]
    except WrongSettings as error:
        return [Finding(ID, "fail", str(error))]
    servers = f"{len(found.servers)} server{'s' if len(found.servers) > 1 else ''}"
    settings = ", ".join(f"{key} = {value}" for key, value in found.settings.items())
    return [Finding(ID, "ok", f"{found.system.title}: {found.version}, {servers}, {settings}")]
