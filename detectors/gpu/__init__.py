"""Detects GPU faults: XID errors, memory and link errors, throttling, and lost devices."""
