"""One launcher per node, one coordinator per job: a lost rank comes back while the others stay alive."""
