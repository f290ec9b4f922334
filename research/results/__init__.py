"""What writes docs/results.md: tables, their campaigns, numbers, figures and text."""
