"""Plain scripts as their frameworks' users write them. ``docs/adapters`` holds each one's protection as a diff."""
