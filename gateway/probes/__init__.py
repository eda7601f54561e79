"""What a probe is: a declared read that answers "did it land?". Kinds live beside this file."""
