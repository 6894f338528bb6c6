"""Batches: files of requests in OpenAI's form, asked beside live requests, and what keeps them."""
