"""Processes that begin with torch imported: forks of one process a worker, in place of an interpreter started for each.

Importing torch and its optimizers costs three seconds of a core, frameworks as much again, and the stories start
hundreds of ranks and launchers: more than a third of what the whole suite computed. What runs is the same, and is told
so by the same command line, environment and descriptors; that it also begins from nothing is told by
the plain scripts of ``tests/recovery/launcher/test_processes.py``, the demo, and ``ddp`` among the adapters.
"""
