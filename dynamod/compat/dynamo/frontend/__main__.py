"""Entry point."""

from dynamod.cli.main import frontend

frontend()
