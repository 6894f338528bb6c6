"""Features: what a capability in a folder of its own adds to the core."""
