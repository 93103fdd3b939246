"""Detects network faults: NIC errors, links that go down, and slow transfers between ranks."""
