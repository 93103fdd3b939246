"""A real service and a real training job on this machine, made sick."""
