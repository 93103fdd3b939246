"""Encodings of tensors in checkpoints: exact (differences, byte planes, zstd) and quantized. Without torch.

``tensor_blob.py``    what every encoded tensor has: a header that describes it, and sections
``exact.py``          changed rows or blocks since a base, byte planes, zstd; decodes to the same bits
``quantized.py``      8, 4, or 2 bits a value, with an error bound for each group; never the same bits
``encoded_slot.py``   a file with the encoded tensors of one slot
``slot_chain.py``     the chain of such files back to a full slot, read tensor by tensor
``chain_policy.py``   which base the next step is written against
"""
