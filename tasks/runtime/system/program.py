"""A program that is not ours as a child process: it ends with its parent, too.

    python -m tasks.runtime.system.program <user or -> <program> [arguments ...]

PostgreSQL refuses to run as root and is given a user of its own. To change the user clears the
parent's death signal (prctl(2)), so it is asked for again afterwards.
"""

from __future__ import annotations

import os
import pwd
import sys

from tasks.runtime.system.child import die_with_parent


def become(user: str) -> None:
    """Give up this process's rights for a user's."""
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
