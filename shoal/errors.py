"""The one kind of error that is the user's to mend: a sentence, exit code 2, no traceback."""


class UserError(Exception):
    """What is wrong, where, and what would be right, in one sentence."""


def check_choice(what: str, value: str, choices: tuple[str, ...] | list[str]) -> None:
    """Raise a `UserError` that lists the choices unless `value` is one of them."""
    if value not in choices:
        raise UserError(f"{what} '{value}' is not known; choose one of: {', '.join(choices)}.")


def check_range(what: str, value: float, low: float, high: float | None = None) -> None:
    """Raise a `UserError` unless low <= value (<= high). NaN is out of every range."""
    if not (value >= low and (high is None or value <= high)):
        right = f"at least {low}" if high is None else f"from {low} to {high}"
        raise UserError(f"{what} is {value}, but must be {right}.")
