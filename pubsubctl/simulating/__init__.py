"""The runs of `simulate`."""
