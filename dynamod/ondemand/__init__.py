"""Models that are loaded when a request asks for them, and unloaded when nobody does."""
