"""Policies of detectors: whether findings of a detector open incidents, and whether Mainstay acts on them itself."""
