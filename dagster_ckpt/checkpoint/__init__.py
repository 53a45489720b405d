"""The checkpoint protocol. It uses neither Spark nor Dagster, so it runs inside any driver."""
