"""The tests run side by side: a thread that looks for work would take the cores from another's."""

import os

os.environ["GOMP_SPINCOUNT"] = "0"
