"""From text to batches: corpora, token files, windows, and the Lightning module around them."""
