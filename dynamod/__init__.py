"""dynamod: LLM serving by supervised actors, on one machine or many.

The packages (one folder each, with a README) and their import rules are in README.md.
"""

__version__ = "0.2.0"
