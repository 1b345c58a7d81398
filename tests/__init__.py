"""Tests of Dynolab. None needs the network: a look-up at the Hub fails at once."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
