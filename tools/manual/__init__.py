"""Reference pages of the manual, generated from the code, and the chart of the README."""
