"""Correlates findings into incidents, ranks root causes, and detects lemon nodes."""
