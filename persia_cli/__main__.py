"""`python -m persia_cli` is `persia`."""

from persia_cli.main import main

if __name__ == "__main__":
    main()
