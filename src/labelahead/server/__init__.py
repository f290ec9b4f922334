"""The labelling page: a local server, its durable record, and the page itself."""
