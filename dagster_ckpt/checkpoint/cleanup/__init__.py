"""Deletes what nobody needs, and keeps what a user has pinned."""
