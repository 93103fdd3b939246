"""Commands for operators: they call the service and need only its URL and a token."""
