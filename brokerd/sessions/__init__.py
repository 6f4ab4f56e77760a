"""Sessions between processes, for every protocol and for real and simulated networks."""
