"""In-memory protection for training that something else starts: torchrun, Slurm, a framework's own loop.

A standing agent (``mainstay agent --job NAME``, one a node) keeps the snapshots while ranks come and go. ``standing``
is the session of a rank with it; ``loop`` protects DDP, FSDP2, HSDP and plain loops through ``mainstay.attach``;
``dcp``, ``huggingface``, ``lightning`` and ``megatron`` speak the manners of those. Nobody heals in place here:
whoever started the ranks starts them again, and they go on from memory instead of from disk.
"""
