"""The signals that ask a run to stop."""

import signal

# Ctrl-C; the end of a session or of a machine; SLURM's warning before the time is up, which Windows does not have.
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name)]
