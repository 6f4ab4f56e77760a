"""Live views and logs of a lab."""
