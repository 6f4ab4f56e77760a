"""What happened, as typed records on disk: written by whoever did it, read by checkers."""
