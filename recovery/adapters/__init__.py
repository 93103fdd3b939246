"""In-memory protection for training that something else starts: torchrun, Slurm, a framework's own loop.

A standalone agent (``mainstay agent --job NAME``, one a node) keeps the snapshots while ranks come and go. A rank's
session with it is ``mainstay.recovery.sdk.standalone``; ``mainstay.attach`` uses it for DDP, FSDP2, HSDP and loops;
``dcp``, ``huggingface``, ``lightning`` and ``megatron`` use those interfaces. No job recovers in place here:
whoever started the ranks starts them again, and they continue from memory instead of from disk.
"""
