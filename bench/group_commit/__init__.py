"""What group commit makes of a disk's speed."""
