"""Detects host faults: lost nodes, failed host checks, memory leaks, and bit flips in host memory."""
