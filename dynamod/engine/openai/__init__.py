"""Any server that speaks OpenAI's API as a text engine: one that runs, or one that the worker starts and stops."""
