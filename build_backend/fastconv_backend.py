"""setuptools as PEP 517 backend, except that it builds with the torch already installed beside pip.

Any torch's headers give the same binary, and a torch of its own for the isolated build would be a download of several
gigabytes. FASTCONV_ISOLATED_TORCH=1 asks for that download.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from collections.abc import Mapping
from typing import Any

from setuptools.build_meta import *  # noqa: F403  (the hooks that are not replaced below)

if importlib.util.find_spec("torch") is None and os.environ.get("FASTCONV_ISOLATED_TORCH") != "1":
    # At the end of the path: the build requirements that pip isolated keep their precedence.
    sys.path += [path for path in {sysconfig.get_path(kind) for kind in ("purelib", "platlib")} if path not in sys.path]

Settings = Mapping[str, Any] | None


def _build_requirements() -> list[str]:
    return [] if importlib.util.find_spec("torch") else ["torch>=2.10"]


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    return _build_requirements()


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    return _build_requirements()


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    return _build_requirements()
