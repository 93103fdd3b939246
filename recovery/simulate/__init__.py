"""Runs that fail, in a computer: failure processes, recorded traces, and what a policy of recovery keeps of the time.

``processes`` and ``traces`` say when nodes fail and return; ``gaps`` runs many seeds of one policy at once; ``elastic``
and ``redundant`` follow a recorded trace event by event. Pure and seeded: the same input gives the same figures.
"""
