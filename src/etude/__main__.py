"""Makes `python -m etude` the same as the command `etude`."""

from etude.cli.main import main

main()
