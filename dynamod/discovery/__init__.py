"""Addresses, leases, instances and model cards: in memory, over the link to the daemon, in etcd."""
