"""The real control plane in virtual time: simulated wire, registry and faults, all drawn from one seed."""
