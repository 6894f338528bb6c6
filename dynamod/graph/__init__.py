"""Graphs of services: how a user writes one, and how it becomes a description the daemon can run.

Nothing is imported here: a service process needs the decorators of `graph.service`, not the YAML reader.
"""
