"""One launcher: the processes of a node, and where the coordinator runs."""
