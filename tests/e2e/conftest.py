"""Machine-wide needs of the end-to-end tests: the directory of helper modules on the import path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
