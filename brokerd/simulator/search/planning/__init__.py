"""The plan of a seed: cluster, workload, faults, and links that stay broken for ever."""
