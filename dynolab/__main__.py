"""The command `dynolab`: it runs the platform, which is in a checkout and not in the wheel."""

import sys


def main() -> None:
    """Entry point: `flows.cli` of the checkout, or where to get one."""
    try:
        from flows.cli import main as run
    except ModuleNotFoundError as error:
        if error.name != "flows":
            raise
        sys.exit(
            "dynolab: the library is installed here, without the platform that this command runs; "
            "clone the repository and run `make setup` in it"
        )
    run()


if __name__ == "__main__":
    main()
