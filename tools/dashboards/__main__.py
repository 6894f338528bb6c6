"""Write the dashboards: `python -m tools.dashboards`. `tests/test_dashboards.py` compares the files."""

from .grafana import FOLDER, texts


def main() -> None:
    """Write the files."""
    FOLDER.mkdir(exist_ok=True)
    for path, text in texts().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
