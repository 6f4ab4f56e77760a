"""Gryphon: end-to-end knowledge and curiosity streams over a durable log at the publisher."""
