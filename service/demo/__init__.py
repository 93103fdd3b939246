"""The main job on one machine: service, probes, a protected training run, one injected fault, recovery."""
