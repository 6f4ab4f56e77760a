"""Parts of protocol cores."""
