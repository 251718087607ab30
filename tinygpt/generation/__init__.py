"""From a checkpoint to text: the KV cache, the decoding loop, sampling."""
