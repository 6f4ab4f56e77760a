"""Facts of a run that two files state, compared."""
