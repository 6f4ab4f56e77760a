"""What must hold after every step and at the end of a run."""
