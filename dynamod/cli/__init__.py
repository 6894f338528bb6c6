"""The commands `dynamo`, `dynamod` and `dynamo-run`: arguments in, text out, nothing else."""
