"""What brokers say to each other beside publications."""
