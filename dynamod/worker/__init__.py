"""The worker actor around one engine."""
