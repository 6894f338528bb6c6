"""Clocks of requests that may have crashed a worker."""

PASSED_AFTER = 1.0
"""Seconds behind the first token of a request that is tried alone, for slow engines; see `PASSED`."""
PASS_LOOK = 0.02

PREFILL_CAUSE = 0.25
"""Seconds for a daemon to say how a prefill worker has ended, which the worker that answers may notice first."""

TRIAL_PAUSE = 0.05
"""Seconds until an instance is asked again that tries the request of another ingress process."""
