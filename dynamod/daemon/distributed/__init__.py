"""The Python client API: a user's own file is an engine, or asks one, in a process of its own."""
