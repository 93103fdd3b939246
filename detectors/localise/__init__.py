"""Which GPU, NIC, node, cable or switch is bad, from measurements between two nodes at a time.

``plan.next_round`` says who measures with whom next, or the verdict; ``plan.record`` takes what was measured. Pure.
"""
