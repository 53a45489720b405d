"""Sessions, queries and their plans."""
