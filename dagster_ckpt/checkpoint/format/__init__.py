"""What is written: names, manifests, records and their checks."""
