"""dynamod: LLM serving by supervised actors, on one machine or many.

The rooms of the house (one folder each, with a README) and who may import whom stand in README.md.
"""

__version__ = "0.1.0"
