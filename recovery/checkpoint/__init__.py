"""The disk level: a directory a step that any ``torch.distributed.checkpoint`` tool reads, and manifests that we read.

opcodes     a pickle stream as data: written term by term, read without executing anything
torchfile   one tensor as ``torch.save`` has it, its bytes where they can be read without torch
dcp         the ``.metadata`` of a step
manifest    what we ourselves read: runs, parts, manifests, each with its checksum
catalog   what lies in a directory: runs, complete steps, what to keep
save, load  a slot into a part of a step, and back
writer      the process that writes; the agent feeds it
"""
