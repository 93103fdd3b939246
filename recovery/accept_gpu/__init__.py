"""Checks that Mainstay works on the GPUs, the driver, and the NCCL of a site: what ``mainstay accept-gpu`` runs.

To add a check: a module here with the class, a test beside the others, and a word in ``registry.CHECKS``.
"""
