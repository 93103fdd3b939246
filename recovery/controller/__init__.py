"""The coordinator of a job: its state, and what follows from what happens."""
