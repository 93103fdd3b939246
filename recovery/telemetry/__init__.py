"""What a job reports to the service."""
