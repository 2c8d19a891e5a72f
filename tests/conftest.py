"""Hypothesis profiles, and what happens to tests that need something this machine does not have.

Profiles: `default` for people, `ci` the same but reproducible, `mutants` short and always the same.
"""

import os
import shutil

import pytest
from hypothesis import HealthCheck, Phase, settings

pytest_plugins = ["pytester"]

IN_CI = bool(os.environ.get("CI"))

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, print_blob=True)
settings.register_profile(
    "mutants",
    settings.get_profile("default"),
    max_examples=25,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),  # that it fails is all we want to know
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if IN_CI else "default"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Spark needs Java. Without it a person sees a skip, and CI a failure: what CI does not run, nobody has tested."""
    if item.get_closest_marker("spark") and shutil.which("java") is None:
        if IN_CI:
            pytest.fail("Spark tests need Java 17, and CI must run them: install a JRE", pytrace=False)
        pytest.skip("Spark tests need Java 17: install a JRE to run them")
