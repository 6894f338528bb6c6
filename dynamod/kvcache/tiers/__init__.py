"""Tiers below the device: KV blocks in memory of the host and in files, for when they fall out of the device's pool."""
