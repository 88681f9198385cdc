"""Triton: starting a server, writing what it serves, talking to it."""
