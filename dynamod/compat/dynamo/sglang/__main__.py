"""Entry point."""

from dynamod.cli.main import worker

worker("sglang", "dynamo.sglang")
