"""Flooding on a ring: every broker stores everything, and asks for what it lacks."""
