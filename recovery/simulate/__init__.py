"""Runs that fail, in a computer: failure processes, recorded traces, and what a policy of recovery keeps of the time.

``processes`` and ``traces`` say when nodes fail and return; ``places`` runs many seeds of one policy at once.
Pure and seeded: the same input gives the same figures.
"""
