"""The systems that there are; the one place that knows them by name."""

from bench.peers import mosquitto, nats
from bench.peers.system import System

SYSTEMS: tuple[System, ...] = (*nats.SYSTEMS, *mosquitto.SYSTEMS)
