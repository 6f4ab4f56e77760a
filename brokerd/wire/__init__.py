"""The wire format: messages encoded as frames of strict CBOR, and decoded again."""
