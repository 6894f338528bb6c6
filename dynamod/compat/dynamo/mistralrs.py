"""`python -m dynamo.mistralrs`: a worker with mistral.rs."""

from dynamod.cli.main import worker

if __name__ == "__main__":
    worker("mistralrs", "dynamo.mistralrs")
