"""Ways into a model without a server for others: a chat in the terminal, one prompt from stdin, a file of prompts."""
