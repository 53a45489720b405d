"""What is checked before a query starts."""
