"""From a seed to a plan: cluster, workload, faults, and what stays broken for ever."""
