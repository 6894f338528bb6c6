"""What holds for all tests."""

from hypothesis import settings

# How long an example takes depends on the machine and on what runs beside it; a test that hangs has a deadline itself.
settings.register_profile("dynamod", deadline=None)
settings.load_profile("dynamod")
