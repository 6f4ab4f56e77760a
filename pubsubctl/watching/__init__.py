"""What is going on in a lab."""
