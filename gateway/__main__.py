"""`python -m gateway` is the command `seawall`."""

from gateway.cli import main

main()
