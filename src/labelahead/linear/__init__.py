"""The papers' mathematics on tensors: nothing here has seen a network."""
