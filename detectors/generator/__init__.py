"""Generates recordings of training runs with known faults, and of healthy runs that resemble faults."""
