"""From text to batches: corpora, token files, layouts, batches, and the Lightning module around them."""
