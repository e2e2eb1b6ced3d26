"""Sphinx reads this: `make docs` builds docs/ into build/docs, strictly."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS / "extension"), str(DOCS.parent / "workflow")]

from scalestudy import __version__  # noqa: E402

project = "scalestudy"
author = "The scalestudy developers"
version = release = __version__
extensions = ["myst_parser", "scalestudy_docs"]
exclude_patterns = ["extension", "figures"]
nitpicky = True
# An example of wrong input is not YAML.
suppress_warnings = ["misc.highlighting_failure"]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "attrs_inline", "attrs_block"]
myst_heading_anchors = 4

html_theme = "furo"
html_title = "scalestudy"
html_static_path = ["static"]
html_css_files = ["scalestudy.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_show_sphinx = False
# MathML is drawn by the browser: MathJax would be fetched from the network.
html_math_renderer = "mathml"
pygments_style = "friendly"
pygments_dark_style = "monokai"
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#00568f",
        "color-brand-content": "#00568f",
        "color-brand-visited": "#4b4a86",
        "color-api-name": "#1c1f24",
        "color-api-pre-name": "#1c1f24",
    },
    "dark_css_variables": {
        "color-brand-primary": "#79bcec",
        "color-brand-content": "#79bcec",
        "color-brand-visited": "#b3b1ec",
        "color-api-name": "#f0f2f4",
        "color-api-pre-name": "#f0f2f4",
    },
    "navigation_with_keys": True,
}
