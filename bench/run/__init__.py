"""How a run is carried out and what it leaves behind."""
