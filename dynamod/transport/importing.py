"""Imports of libraries in threads, one at a time."""

import threading

IMPORTING = threading.Lock()
"""Held while `nats.client` hides the HTTP library from nats-py, and while a thread imports the HTTP library.

`sys.modules` is one for all threads: an import of the HTTP library in the same moment would not find the library.
"""
