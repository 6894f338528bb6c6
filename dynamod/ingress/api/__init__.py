"""The OpenAI endpoints."""
