"""The client library: decisions in `core`, sockets in `client`."""
