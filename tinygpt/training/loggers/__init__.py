"""Where a run's figures go beside metrics.csv, one file each: a Lightning logger, which may have more.

`log_samples(samples, step)` takes what prompts were continued with, `log_run(run_dir)` the files of a run at its end.
"""
