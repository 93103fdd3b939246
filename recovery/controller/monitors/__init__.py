"""What a coordinator watches while ranks train."""
