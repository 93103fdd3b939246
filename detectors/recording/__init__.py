"""Writes and replays recordings: the telemetry of a fleet and its jobs as a directory of plain files."""
