"""The names of components that can be measured by themselves."""

from typing import Final, Literal

Component = Literal["matching", "simulator", "verdict"]
COMPONENTS: Final = ("matching", "simulator", "verdict")
