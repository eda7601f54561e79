"""The rules. Pure: values in, values out. No clock, no randomness, no IO, no event loop, no logging.

Time comes in as an argument (`now`: monotonic seconds, `at`: UTC milliseconds in records), randomness as a number.
"""
