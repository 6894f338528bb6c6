"""The graphs that ship with dynamod. A user's own folder `graphs/` goes before this one, file by file."""
