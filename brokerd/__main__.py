"""`python -m brokerd --config broker.toml`: one broker, by hand, until SIGTERM or Ctrl-C."""

import argparse
import os
import sys
import tomllib
from pathlib import Path
from typing import Final

from brokerd.errors import BrokerError, BrokerMustEnd, DiskFailed, StorageCorrupt
from brokerd.runtime.process import run_broker

EXIT_INTERNAL: Final = 70
EXIT_CONFIG: Final = 78


def main() -> int:
    """Run the broker that the file describes; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m brokerd", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="TOML file of a BrokerConfig")
    path = parser.parse_args().config
    os.umask(0o077)
    try:
        run_broker(tomllib.loads(path.read_text(encoding="utf-8")))
    except DiskFailed as error:
        print(error, file=sys.stderr)
        return EXIT_INTERNAL
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 2
    except (BrokerMustEnd, StorageCorrupt) as error:
        print(error, file=sys.stderr)
        return EXIT_CONFIG
    except BrokerError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
