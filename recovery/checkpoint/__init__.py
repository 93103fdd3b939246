"""The disk level: a directory a step that any ``torch.distributed.checkpoint`` tool reads, and manifests that we read.

pickle_codec   a pickle stream as data: written term by term, read without executing anything
torchfile   one tensor as ``torch.save`` has it, its bytes where they can be read without torch
dcp         the ``.metadata`` of a step
manifest    what we ourselves read: runs, parts, manifests, each with its checksum
catalog     what lies in a directory: runs, complete steps, what to keep
direct_file a file written past the page cache, digested in the same pass
save        a slot, or a rank's share of it, into a part of a step
load        tensors of a part; slot_reader: a slot of them
tensor_index, reshape   any box of a tensor from the pieces of all parts, for a job of another shape
writer      the process that writes; the agent feeds it
"""
