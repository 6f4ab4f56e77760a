"""[GES]: a hierarchy of units, of which every broker has an outline."""
