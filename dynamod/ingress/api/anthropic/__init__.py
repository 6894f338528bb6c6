"""Anthropic's Messages API on the machinery of chat completions."""
