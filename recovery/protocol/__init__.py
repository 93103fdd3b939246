"""What launchers, ranks, and the coordinator say to each other, and how it travels."""
