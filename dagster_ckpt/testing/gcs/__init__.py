"""A strict server of Google Cloud Storage with faults."""
