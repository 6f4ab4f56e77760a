"""[GES]: a hierarchy of units, known in outline by every broker in it."""
