"""Engines: what turns a request into tokens or text, each with the same interface, loaded lazily by name."""
