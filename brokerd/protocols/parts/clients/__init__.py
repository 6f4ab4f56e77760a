"""The clients of one broker, in every protocol."""
