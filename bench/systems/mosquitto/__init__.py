"""Mosquitto as a system under test."""
