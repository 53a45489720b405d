"""The example pipelines: real flights, landed day by day, counted by a checkpointed stream, reported."""
