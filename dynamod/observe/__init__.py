"""What can be seen of a running process: logs, captured output of children, statistics as metrics."""
