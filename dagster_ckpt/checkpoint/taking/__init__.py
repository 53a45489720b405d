"""Taking checkpoints and savepoints."""
