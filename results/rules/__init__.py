"""The rules of verdicts and the terms of the rules."""
