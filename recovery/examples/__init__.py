"""Training scripts that show the SDK: the same one plain and protected."""
