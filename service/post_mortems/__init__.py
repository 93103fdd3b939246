"""Post-mortems of incidents: as data, as Markdown, and behind links that expire."""
