"""Reference pages of the manual, generated from the code."""
