"""The documentation site.

`make docs` writes it to build/docs. Its pages are the Markdown files beside this one.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import labelahead

project = "labelahead"
author = "the labelahead authors"
copyright = "the labelahead authors, MIT licence"
version = release = labelahead.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "docstrings", "commands", "site_search"]
exclude_patterns = ["_ext"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}

# Markdown as GitHub reads it: the same anchors, the same relative links.
myst_heading_anchors = 4
highlight_language = "none"  # of blocks that do not say what they are: commands, mostly

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say it in words

suppress_warnings = ["misc.highlighting_failure"]  # CONTRIBUTING has a block that a test reads

html_theme = "furo"
html_title = f"labelahead {release}"
html_static_path = ["_static"]
html_css_files = ["house.css"]
html_copy_source = False
html_show_sphinx = False
