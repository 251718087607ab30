"""Many runs: each in a process of its own, and searched by Optuna."""

DIVERGED = 1e3  # in place of a result that is none: a sampler needs a number
JOURNAL = "study.journal"  # in the directory of a search
