"""Stand-ins for hardware and other services that tests and benches drive live."""
