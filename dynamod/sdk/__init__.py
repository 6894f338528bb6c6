"""The Python client API: the code of dynamo.runtime and dynamo.llm."""
