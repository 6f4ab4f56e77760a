"""What `simulate` runs."""
