"""Figures of runs, and common parts of all figures."""

import logging

# Where the home folder is read-only, matplotlib takes a temporary folder, and warns of it.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
