"""`python -m dynamo.sglang` and `python -m dynamo.sglang.worker`: a worker with SGLang."""
