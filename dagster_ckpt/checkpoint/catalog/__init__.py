"""Which checkpoints exist, and which one to restore."""
