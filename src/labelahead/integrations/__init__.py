"""Other labelling tools that use labelahead's learner."""
