"""The mocker: an engine without a model that keeps the time and the KV blocks of a real one."""
