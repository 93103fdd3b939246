"""Detects slow ranks: stragglers, data stalls, CPU contention, and load imbalance."""
