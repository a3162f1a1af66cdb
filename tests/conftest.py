from hypothesis import settings

# Examples are not timed: a busy machine is no defect of the code under test.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")
