"""`python -m dynamo.trtllm`: a worker with TensorRT-LLM."""

from dynamod.cli.main import worker

if __name__ == "__main__":
    worker("trtllm", "dynamo.trtllm")
