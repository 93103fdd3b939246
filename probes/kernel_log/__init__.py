"""The kernel log as facts: ``patterns.toml`` says what lines mean, ``parse`` reads one, ``reader`` follows the log."""
