"""Experiments beside the product.

Studies of the papers, result tables, competitors and benchmarks.
"""
