"""`python -m dynamod`: the daemon, for where console scripts are not on the PATH."""

from dynamod.cli.main import dynamod

if __name__ == "__main__":
    dynamod()
