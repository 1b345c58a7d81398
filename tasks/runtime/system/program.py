"""Runs a program that is not ours as a child process that ends with its parent.

    python -m tasks.runtime.system.program <user or -> <program> [arguments ...]

PostgreSQL refuses to run as root and gets a user of its own. Changing the user clears the parent
death signal (prctl(2)), so this program sets it again afterwards.
"""

from __future__ import annotations

import os
import pwd
import sys

from tasks.runtime.system.child import die_with_parent


def become(user: str) -> None:
    """Switch this process to another user."""
    entry = pwd.getpwnam(user)
    os.initgroups(user, entry.pw_gid)
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    os.environ["HOME"] = entry.pw_dir


if __name__ == "__main__":
    parent = os.getppid()
    if sys.argv[1] != "-":
        become(sys.argv[1])
    die_with_parent(parent)
    os.execvp(sys.argv[2], sys.argv[2:])
