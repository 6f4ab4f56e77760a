"""The files of a run, as tables."""
