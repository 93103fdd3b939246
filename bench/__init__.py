"""Measured claims. Each module is one bench: ``python -m bench.NAME [--json FILE]``; modules ``lib_*`` are not."""
