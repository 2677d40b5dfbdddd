"""Checks a batch script of the user's before anything is submitted."""

import ast
import string

_OWN = ("n", "gpus", "program_and_args")
_OF_IPYPARALLEL = (  # templates may come from its profiles
    *("program", "program_args", "queue", "account", "qos", "timelimit"),
    *("profile_dir", "cluster_id", "output_file", "environment_json"),
)
_NAMES = {*_OWN, *_OF_IPYPARALLEL}
_STARTS_ENGINES = {"program", "program_and_args"}
_BRACES = "braces of the shell are written twice: ${{A}}"


def trouble_of(template: str) -> str | None:
    """Say, as half a sentence, why a batch script cannot start engines; None if it can."""
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        return (
            f"its braces do not pair up ({error}); those of the shell are written twice: ${{{{A}}}}"
        )
    names: set[str] = set()
    for field in (field for _, field, _, _ in parsed if field is not None):
        found = _names_in(field)
        for strange in sorted(found - _NAMES):
            known = ", ".join(f"{{{name}}}" for name in _OWN)
            return f"{{{strange}}} in it is none of {known}; {_BRACES}"
        names |= found
    if not names & _STARTS_ENGINES:
        return "it starts no engines: it needs a line such as `srun {program_and_args}`"
    return None


def _names_in(field: str) -> set[str]:
    """Find the names in a placeholder, which may calculate: `{n // 4}`."""
    try:
        tree = ast.parse(field, mode="eval")
    except SyntaxError:
        return {field}
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} or {field}
