"""What checkpoints there are, and which one to go on from."""
