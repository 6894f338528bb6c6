"""Inside a component process: its host, its components, and what they find there."""
