"""Detects outliers and changes in signals: the statistical methods that the other detectors use."""
