"""Engines that users write in Python: their handlers, with requests in the original's form."""
