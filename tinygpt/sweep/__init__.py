"""Many runs: each in a process of its own, and searched by Optuna."""

JOURNAL = "study.journal"  # in the directory of a search
