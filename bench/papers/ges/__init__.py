"""[GES]: what its routing costs, and whether it is right, on hierarchies of any kind."""
