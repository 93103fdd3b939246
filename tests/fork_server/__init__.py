"""Processes that begin with torch imported: forks of one process a worker, in place of an interpreter started for each.

Importing torch and its optimizers costs three seconds of a core, frameworks as much again, and the scenarios start
hundreds of ranks and launchers: more than a third of what the whole suite computed. The same code runs: the tests check
it with the same command line, environment and descriptors. These show that it also starts from nothing: the plain
scripts of ``tests/recovery/launcher/test_processes.py``, the demo, and ``ddp`` among the adapters.
"""
