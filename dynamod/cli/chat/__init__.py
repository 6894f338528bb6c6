"""The chat client of dynamo-run: terminal, standard input, batch files."""
