"""Jobs of many nodes in one process and in simulated time: real launchers, coordinators, and elections over a network
that loses, delays, and cuts; only the processes of ranks and agents are models (``ranks``, ``agents``)."""
