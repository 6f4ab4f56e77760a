"""The list of all systems, and the only place with their names."""

from bench.peers import mosquitto, nats
from bench.peers.system import System

SYSTEMS: tuple[System, ...] = (*nats.SYSTEMS, *mosquitto.SYSTEMS)
