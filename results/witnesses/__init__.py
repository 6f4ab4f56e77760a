"""Facts of a run that two of its files state, each read against the other."""
