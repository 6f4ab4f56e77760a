"""Made histories: runs of any size that nobody ran, right or wrong in known places."""
