"""The state of one job, the events that change it, and their effects: no clock, no I/O, no tasks."""
