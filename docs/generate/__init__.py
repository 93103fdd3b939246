"""Generator of the reference pages and of the benchmark page: ``python -m docs.generate [DIRECTORY]``."""
