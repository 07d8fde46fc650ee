"""setuptools as PEP 517 backend, except that it builds with the torch already installed beside pip.

Any torch's headers give the same binary, and a torch of its own for the isolated build would be a download of several
gigabytes. FASTCONV_ISOLATED_TORCH=1 asks for that download.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from setuptools.build_meta import *  # noqa: F403  (the hooks that are not replaced below)

Settings = Mapping[str, Any] | None

# Prints where Python looks for modules if it finds torch there: an editable one's place may be known to a hook alone.
_PATH_TO_TORCH = """
import importlib.util, json, os, sys
torch = importlib.util.find_spec("torch")
print(json.dumps(sys.path + [os.path.dirname(path) for path in torch.submodule_search_locations] if torch else []))
"""


def _path_to_torch() -> list[str]:
    """The path of the Python that pip runs in, without the variables by which pip hides what is installed: site
    directories, the user's too, what .pth files add to them, and those of the system behind a virtual environment."""
    seen = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONNOUSERSITE")}
    answer = subprocess.check_output([sys.executable, "-c", _PATH_TO_TORCH], env=seen, cwd="/", text=True)
    return json.loads(answer)


if importlib.util.find_spec("torch") is None and os.environ.get("FASTCONV_ISOLATED_TORCH") != "1":
    # At the end of the path: the build requirements that pip isolated keep their precedence.
    sys.path += [path for path in _path_to_torch() if path not in ("", *sys.path)]


def _build_requirements() -> list[str]:
    return [] if importlib.util.find_spec("torch") else ["torch>=2.10"]


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    return _build_requirements()


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    return _build_requirements()


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    return _build_requirements()
