"""``python -m ringfold`` is the command ``ringfold``."""

import sys

from ringfold._cli import ringfold

if __name__ == "__main__":
    sys.exit(ringfold())
