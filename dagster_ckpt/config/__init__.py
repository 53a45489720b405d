"""What a user chooses: pure data and pure decisions. Imports neither Dagster nor Spark."""
