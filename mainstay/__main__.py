"""``python -m mainstay`` is the ``mainstay`` command."""

from mainstay.cli import main

main()
