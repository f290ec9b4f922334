"""Experiments beside the product: studies of the papers, result tables, competitors and benchmarks."""
