"""Which instance gets a request: policies as pure functions."""
