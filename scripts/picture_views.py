"""Draw the pictures of the views in docs/images, in light and dark.

usage: .venv/bin/python scripts/picture_views.py
"""

import io
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from view_page import CHROMIUM, FLAGS, Views, serve  # noqa: E402 # in tests/
from view_states import ALL  # noqa: E402 # in tests/

WIDTH = 860
COLOURS = 256


def main() -> None:
    """Write one picture per view and theme."""
    with serve() as url, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for theme in ("light", "dark"):
            for name, state in ALL.items():
                tab = browser.new_page(viewport={"width": WIDTH, "height": 800})
                views = Views(tab, url)
                views.use_theme(theme)
                place = views.mount(name, state())
                place.locator(".mgpu").scroll_into_view_if_needed()
                save(place.screenshot(), f"view-{name}-{theme}")
                tab.close()
        browser.close()


def save(screenshot: bytes, name: str) -> None:
    """Write a picture with few colours to docs/images."""
    picture = Image.open(io.BytesIO(screenshot)).convert("RGB")
    small = picture.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    folder = ROOT / "docs" / "images"
    folder.mkdir(exist_ok=True)
    small.save(folder / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
