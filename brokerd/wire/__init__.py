"""What travels: messages as frames of strict CBOR, and back."""
