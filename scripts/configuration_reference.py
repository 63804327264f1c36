"""Prints the reference of all commands' keys, made from the comments in conf/.

python scripts/configuration_reference.py > docs/reference/configuration.md
"""

from dlrm_app.api.commands import COMMANDS, schema_of
from dlrm_app.config.conf_files import BUILDS_ON
from dlrm_app.config.overrides import Overrides
from dlrm_app.config.reference import read_reference


def main() -> None:
    print(
        "# Configuration\n\nMade from the comments in `conf/` by `python scripts/configuration_reference.py`."
    )
    listed: dict[str, set[str]] = {}
    for command in COMMANDS:
        reference = read_reference(command, schema_of(command), Overrides())
        listed[command] = {entry.key for *_, entries in reference.sections for entry in entries}
        known = listed.get(BUILDS_ON.get(command, ""), set())
        print(f"\n## dlrm-{command}\n\n{reference.header}")
        for name, group in sorted(reference.groups.items()) if not known else []:
            print(f"\n`{name}=` {', '.join(f'`{choice}`' for choice in group.choices)}")
        for title, about, entries in reference.sections:
            rows = [
                f"| `{key}` | `{value}` | {comment.replace('|', chr(92) + '|')} |"
                for key, value, comment in entries
                if key not in known
            ]
            if rows:
                heading = f"\n**`{title}`** {about}".rstrip() + "\n" if title else ""
                print(heading, "| key | value | |", "|---|---|---|", *rows, sep="\n")


if __name__ == "__main__":
    main()
