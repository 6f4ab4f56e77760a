"""Load: what is published and subscribed, when, and what came of it."""
