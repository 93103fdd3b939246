"""Silences and maintenance windows: findings are recorded as always, and no message is sent about them."""
