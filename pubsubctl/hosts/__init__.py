"""How hosts are reached."""
