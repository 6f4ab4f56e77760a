"""Load generators: publishers, subscribers, and checks of deliveries on receipt."""
