"""Detects hangs, and finds the rank or group that blocks a job."""
