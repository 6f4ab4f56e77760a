"""Flooding on a ring: every broker stores all publications, and requests missing ones."""
