"""Whether hosts are fit for what is planned."""
