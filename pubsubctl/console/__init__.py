"""Terminal output, signals and the global options of a command."""
