"""From coded bytes to what a model sees: `images.py` first, `kernel/` for speed."""

MAX_PIXELS = 2 * 89_478_485
"""Of one image, as in Pillow (DecompressionBombError): a few hundred bytes can claim 4 thousand million, 13 GB of memory."""
