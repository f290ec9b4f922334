"""Campaigns: what a person or a program does with data, a network and a budget."""
