"""`python -m dynamo.llama_cpp`: a worker with llama.cpp."""

from dynamod.cli.main import worker

if __name__ == "__main__":
    worker("llama_cpp", "dynamo.llama_cpp")
