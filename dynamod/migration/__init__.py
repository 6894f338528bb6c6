"""What happens to a request when its instance fails: the decision, and the flight that carries it out."""
