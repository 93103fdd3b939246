"""Notifications: routes from incidents to receivers, messages, and their delivery."""
