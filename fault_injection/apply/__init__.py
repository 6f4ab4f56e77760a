"""How faults are applied, seen and healed."""
