"""Other libraries behind one face, for tests, benchmarks and results: each adapted once."""
