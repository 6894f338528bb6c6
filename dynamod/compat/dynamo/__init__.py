"""The import names of NVIDIA Dynamo's Python packages, served by dynamod."""

from dynamod import __version__ as __version__
