"""How long tests wait for what has to happen, on a machine that has other work as well."""

from typing import Final

# It only ends what hangs: no test says by it how fast anything is.
PATIENCE_S: Final = 300.0
