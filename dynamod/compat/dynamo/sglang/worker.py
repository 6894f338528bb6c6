"""`python -m dynamo.sglang.worker`: a worker with SGLang."""

from dynamod.cli.main import worker

if __name__ == "__main__":
    worker("sglang", "dynamo.sglang.worker")
