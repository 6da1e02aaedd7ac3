"""`python -m sdk` is the command `podlift`."""

from .cli import main

main()
