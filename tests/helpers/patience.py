"""The time limit of tests for events on a loaded machine."""

from typing import Final

# It only ends what hangs: no test says by it how fast anything is.
PATIENCE_S: Final = 300.0
