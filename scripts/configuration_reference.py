"""Prints the reference of all commands' keys, made from the comments in conf/.

python scripts/configuration_reference.py > docs/reference/configuration.md
"""

from dlrm_app.cli.commands import COMMANDS, schema_of
from dlrm_app.config.compose import BUILDS_ON
from dlrm_app.config.reference import Reference


def main() -> None:
    print(
        "# Configuration\n\nMade from the comments in `conf/` by `python scripts/configuration_reference.py`."
    )
    listed: dict[str, set[str]] = {}
    for command in COMMANDS:
        reference = Reference(command, schema_of(command), [])
        sections = reference.sections()
        listed[command] = {entry.key for section in sections for entry in section.entries}
        known = listed.get(BUILDS_ON.get(command, ""), set())
        print(f"\n## dlrm-{command}\n\n{reference.header}")
        for group in sorted(reference.choices) if not known else []:
            print(f"\n`{group}=` {', '.join(f'`{choice}`' for choice in reference.choices_of(group))}")
        for section in sections:
            rows = [
                f"| `{entry.key}` | `{entry.value}` | {entry.comment.replace('|', chr(92) + '|')} |"
                for entry in section.entries
                if entry.key not in known
            ]
            if rows:
                title = f"\n**`{section.title}`** {section.about}".rstrip() + "\n" if section.title else ""
                print(title, "| key | value | |", "|---|---|---|", *rows, sep="\n")


if __name__ == "__main__":
    main()
