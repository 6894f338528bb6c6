"""dynamod itself: processes under supervision, leases, the control socket."""
