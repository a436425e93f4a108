"""``python -m ringfold`` is the command ``ringfold``."""

from ringfold._cli import ringfold

if __name__ == "__main__":
    ringfold()
