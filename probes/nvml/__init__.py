"""What the NVML sampler is made of: tables, the batched call, links, one card, the library, events.

Nothing here imports ``pynvml``: the module is handed in, so that a host without GPUs never loads it.
"""
