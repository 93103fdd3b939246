"""Finds the faulty GPU, NIC, node, cable, or switch from measurements between pairs of nodes.

``plan.next_round`` returns the next measurements or the verdict; ``plan.record`` adds the results.
"""
