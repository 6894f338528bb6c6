"""What happens to a request when its instance fails: the decision, and the request in flight that carries it out."""
