"""Write ``web/openapi.json`` from the service itself: the only source of the types of the dashboard.

Run by ``npm run generate``. ``--check`` writes nothing and exits with 1 if the committed document differs.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

DOCUMENT = Path(__file__).resolve().parent / "openapi.json"


def document() -> str:
    """The OpenAPI document, in a form that diffs well."""
    from mainstay.service.app import create_app
    from mainstay.service.settings import Settings

    with tempfile.TemporaryDirectory() as directory:
        app = create_app(Settings(data_dir=Path(directory)))
        return json.dumps(app.openapi(), indent=2, sort_keys=True) + "\n"


def main() -> int:
    text = document()
    if "--check" not in sys.argv:
        DOCUMENT.write_text(text)
        return 0
    if DOCUMENT.read_text() == text:
        return 0
    print("web/openapi.json has drifted from the service: run `npm run generate` in web/", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
