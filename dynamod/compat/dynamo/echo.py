"""`python -m dynamo.echo`: a worker with the engine that repeats the prompt's tokens."""

from dynamod.cli.main import worker

if __name__ == "__main__":
    worker("echo", "dynamo.echo")
