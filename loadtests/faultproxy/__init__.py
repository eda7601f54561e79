"""The door to `gateway.storm.faultproxy`: `python -m loadtests.faultproxy --help`. Example scripts lie beside this file."""
