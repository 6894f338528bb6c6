"""The components that ship with dynamod, as actors: what graphs/components.py names."""
