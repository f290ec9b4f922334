"""What writes docs/results.md and docs/results-*.md: tables, their campaigns, numbers, figures and text."""
