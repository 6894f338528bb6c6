"""The words that rooms and processes exchange: frozen structs, one module per receiver."""
