"""`python -m dynamo.frontend`: the front door alone."""
