"""Snapshot memory: plain memory-mapped files of slots, a commit record for each, and the writer that fills them.

Nothing here imports torch except ``state`` and ``device``; the agent, which owns the files, never imports those two.
"""
