"""The site of the documentation, which `./dev docs` builds. CONTRIBUTING.md says why by Sphinx."""

from __future__ import annotations

from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

import fastconv

ROOT = Path(__file__).parents[1]
SOURCE = "https://github.com/fastconv/fastconv"

# The root of the repository is that of the pages, so that links between them hold here as they do on GitHub.
include_patterns = ["*.md", "docs/**.md", "bench/**.md", "examples/**.md", "src/**.md"]
exclude_patterns = [".*", "bench/results", "build", "dist"]
root_doc = "docs/index"

project, copyright, version = "fastconv", "fastconv authors, MIT license", fastconv.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
nitpicky = True
# The site has nothing of torch and Python, and no private names, as type variables are.
nitpick_ignore_regex = [("py:.*", r"(torch|collections|typing)\..*"), ("py:.*", r"fastconv\..*\._.*")]
myst_heading_anchors = 3
highlight_language = "none"
autodoc_inherit_docstrings = False
napoleon_use_param = napoleon_use_rtype = False
maximum_signature_line_length = 100

html_theme = "furo"
html_title = "fastconv"
html_theme_options = {"source_repository": SOURCE, "source_branch": "main", "source_directory": ""}


def link_to_repository(app: Sphinx, doctree: nodes.document) -> None:
    """Of files that are no pages. MyST has seen that they exist, and warned of others."""
    page = ROOT / app.env.docname
    for node in list(doctree.findall(addnodes.download_reference)):
        path = (page.parent / node["reftarget"]).resolve().relative_to(ROOT)
        node.replace_self(nodes.reference("", "", *node.children, refuri=f"{SOURCE}/blob/HEAD/{path}"))


def check_reference(app: Sphinx, env: BuildEnvironment) -> None:
    for name in fastconv.__all__:
        if f"fastconv.{name}" not in env.domaindata["py"]["objects"]:
            logging.getLogger(__name__).warning("fastconv.%s is not in docs/api.md", name)


def redirect(app: Sphinx, exception: Exception | None) -> None:
    if exception is None:
        (Path(app.outdir) / "index.html").write_text('<meta http-equiv="refresh" content="0; url=README.html">\n')


def setup(app: Sphinx) -> None:
    app.connect("doctree-read", link_to_repository, priority=400)  # before Sphinx would copy the files
    app.connect("env-check-consistency", check_reference)
    app.connect("build-finished", redirect)
