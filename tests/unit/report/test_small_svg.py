"""A smaller SVG draws the same image."""

from __future__ import annotations

from scalestudy.report.small_svg import data_url, smaller

SVG = """<?xml version="1.0" encoding="utf-8" standalone="no"?>
<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "x">
<svg xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 9 9">
 <metadata><a>secret</a></metadata>
 <!-- words -->
 <path d="M 10.123456 -20.987654
L 1 2.5 " transform="scale(0.015625)" style="fill: #123456"/>
 <defs><path id="DejaVuSans-41" d="M 2188 4044"/></defs>
 <use xlink:href="#DejaVuSans-41" transform="translate(63.427734 0)"/>
 <use xlink:href="#DejaVuSans-41" transform="translate(63.427734 1)"/>
</svg>
"""


def test_coordinates_have_two_decimals_and_factors_all_of_them() -> None:
    assert smaller(SVG) == (
        '<svg xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 9 9">'
        '<path d="M 10.12 -20.98 L 1 2.5 " transform="scale(0.015625)" style="fill: #123456"/>'
        '<defs><path id="g41" d="M 2188 4044"/></defs>'
        '<use xlink:href="#g41" x="63.42"/>'
        '<use xlink:href="#g41" transform="translate(63.42 1)"/></svg>'
    )


def test_the_address_of_an_image_stands_between_double_quotes_as_it_is() -> None:
    url = data_url('<svg a="100%">a &amp; b #1</svg>')

    assert url == "data:image/svg+xml,%3Csvg a='100%25'%3Ea %26amp; b %231%3C/svg%3E"
