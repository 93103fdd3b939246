"""Detects faults in the job itself: process exits, numeric anomalies, slowdowns, and silent data corruption."""
