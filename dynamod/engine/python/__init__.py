"""Engines that users write in Python: their handlers, in the original's words."""
