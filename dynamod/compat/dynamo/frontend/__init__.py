"""`python -m dynamo.frontend`: the frontend alone."""
