"""`python -m gateway` is `seawall`."""

from gateway.cli import main

main(prog_name="seawall")
