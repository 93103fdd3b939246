"""Judges benchmark results against learned criteria, and detects nodes and cohorts that fail."""
