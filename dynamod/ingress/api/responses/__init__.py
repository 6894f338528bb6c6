"""OpenAI's Responses API on the machinery of chat completions."""
