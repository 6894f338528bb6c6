"""The control socket: commands, statistics, doctor."""
