"""Requests and response frames between processes: in-process, unix sockets, NATS."""
