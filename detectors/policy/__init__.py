"""Maps driver error codes to severities and recommended actions: a built-in table, site overrides, and tests."""
