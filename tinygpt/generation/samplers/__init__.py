"""What stands between the model's scores and the draw: each sampler a file, in the order of `sampling.Sampling`.

A sampler takes the logits (B, V) of the next token, and returns them changed; -inf where a token is not to be drawn.
"""
