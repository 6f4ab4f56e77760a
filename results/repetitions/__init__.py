"""Several runs of the same thing: their spread, the typical one, and how others differ."""
