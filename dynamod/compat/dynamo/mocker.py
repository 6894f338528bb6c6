"""`python -m dynamo.mocker`: a worker with the mocker."""

from dynamod.cli.main import worker

if __name__ == "__main__":
    worker("mocker", "dynamo.mocker")
