"""Engines: what turns a request into tokens or text, each behind the same interface, loaded lazily by name."""
