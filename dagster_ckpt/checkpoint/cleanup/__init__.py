"""Deleting what nobody needs, and keeping what somebody does."""
