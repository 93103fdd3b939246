"""The snapshot agent of a node: the process that owns snapshot memory, outlives the ranks, and serves its peers.

numpy, msgspec and xxhash only: it never imports torch, so it starts at once and cannot hang
in a driver.
"""
