"""Who is alive: addresses, leases, instances and the model cards they publish."""
