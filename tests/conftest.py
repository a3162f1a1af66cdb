from hypothesis import settings

# Examples are not timed: a busy machine is no defect of the code under test.
# The same examples every run, so that a failure is one of the change; to look for new ones, run with
# --hypothesis-profile=explore.
settings.register_profile("tests", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("tests")
