"""The Python client, the command line, benchmarks."""
