"""How a host is reached: what all connectors can do, and the ones there are."""
