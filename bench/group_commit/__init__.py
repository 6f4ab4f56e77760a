"""Group commit at different speeds of a disk."""
