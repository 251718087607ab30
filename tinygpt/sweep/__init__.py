"""Many runs: each in a process of its own, and searched by Optuna."""

DIVERGED = 1e3  # in place of a result that is none: a sampler needs a number
METRICS = {"best_val_bits_per_byte": "bits per byte", "best_val_loss": "nats a token"}  # of summary.json: their units
JOURNAL = "study.journal"  # in the directory of a search
