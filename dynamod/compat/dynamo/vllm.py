"""`python -m dynamo.vllm`: a worker with vLLM."""

from dynamod.cli.main import worker

if __name__ == "__main__":
    worker("vllm", "dynamo.vllm")
