"""Reports: what failures cost over a time, computed from what is stored."""
