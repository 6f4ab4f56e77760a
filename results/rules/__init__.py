"""What a verdict follows from: rules and the nouns they are written in."""
