"""The transport between nodes, over NATS."""
