"""What every session needs, whatever the protocol and whether real or simulated."""
