"""The clients of one broker, whatever its protocol."""
