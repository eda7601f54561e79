"""Run the fault proxy."""

from gateway.storm.faultproxy.__main__ import main

if __name__ == "__main__":
    main()
