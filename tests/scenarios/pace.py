"""How fast small jobs train here."""

PACE = ["--faults", "sleep:rank=0,step=0,ms=16"]
"""A step lasts a while and computes little: kills come in the midst of a run, on any machine."""
UNHURRIED = {"MAINSTAY_EXAMPLE_FAULTS": "sleep:rank=0,step=0,ms=150"}
"""The environment of a demo's job that trains until it is stopped, beside other tests."""
