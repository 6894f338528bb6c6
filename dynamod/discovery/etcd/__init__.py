"""Leases and keys of all nodes, in etcd."""
