"""Optional capabilities, one folder each."""
