"""The agent of a machine: parent of its brokers and load generators, and healer of their faults."""
