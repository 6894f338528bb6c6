"""The Python client API: what stands behind dynamo.runtime and dynamo.llm."""
