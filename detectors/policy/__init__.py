"""What a driver's error code means for the node, as data: a built-in table, a site's overrides, and a try-out."""
