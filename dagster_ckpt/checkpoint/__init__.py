"""The checkpoint protocol, free of Spark and Dagster, so that it runs inside any driver."""
