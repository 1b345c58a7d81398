"""The manual, built by Sphinx: `make docs`.

Sphinx, MyST and Furo rather than MkDocs: MkDocs 1 has had no release since 2024 and the support of
its Material theme has ended, while Sphinx and MyST are released several times a year. The site
loads nothing from elsewhere, so that it can be read from a folder: formulas become MathML here.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import generate  # noqa: E402

import dynolab  # noqa: E402

project, author, language = "Dynolab", "Dynolab", "en"
release = version = dynolab.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
suppress_warnings = ["myst.header"]  # a page of help begins at the third level
nitpicky = False
add_module_names = False

myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3

default_role = "code"  # docstrings write code as Markdown does
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_maximum_signature_line_length = 90

html_theme = "furo"
html_title = "Dynolab"
html_static_path = ["_static"]
html_css_files = ["manual.css"]
html_js_files = ["copy.js"]
html_extra_path = ["_build/extra"]
html_math_renderer = "mathml"
html_show_sourcelink = False
html_copy_source = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}


def _mathml(translator: Any, node: nodes.Element) -> None:
    """Writes a formula as MathML, which browsers draw without a script."""
    display = "block" if isinstance(node, nodes.math_block) else "inline"
    translator.body.append(convert(node.astext(), display=display))
    raise nodes.SkipNode


def setup(app: Any) -> None:
    """Makes generated pages and pictures before anything is read."""
    app.add_html_math_renderer("mathml", (_mathml, None), (_mathml, None))
    generate.everything(HERE)
