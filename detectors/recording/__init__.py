"""Recordings: what a service saw of a fleet and its jobs, as a directory of plain files, and their replay."""
