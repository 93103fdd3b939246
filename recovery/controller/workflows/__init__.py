"""Recoveries of another kind than to restore what is lost."""
