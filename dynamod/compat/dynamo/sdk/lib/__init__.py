"""Helpers of the SDK."""
