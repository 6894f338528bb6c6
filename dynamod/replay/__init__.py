"""Replay: traces through the real router and the real mocker scheduler, in virtual time."""
