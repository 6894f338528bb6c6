"""Clocks of requests that may have crashed a worker."""

PASSED_AFTER = 1.0
"""Seconds behind the first token of a request that is tried alone, for slow engines; see `PASSED`."""
PASS_LOOK = 0.02

CAUSE = 0.25
"""Seconds for a daemon to say how a process of its node ended; some milliseconds are usual. Of a prefill worker on any
node: the worker that answers may notice its end first."""

TRIAL_PAUSE = 0.05
"""Seconds until an instance is asked again that tries the request of another ingress process."""
