"""One exception tree, drawn in its module; a message is one line whatever went into it."""

import inspect

import pytest

from diversed import errors
from diversed.errors import DiversedError, InputError

CLASSES = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("kind", CLASSES)
def test_exit_codes(kind: type[DiversedError]) -> None:
    assert issubclass(kind, DiversedError)
    assert kind("x").exit_code == (2 if issubclass(kind, InputError) else 1)


def test_every_class_is_public_and_stands_in_the_drawn_tree() -> None:
    defined = {
        name for name, item in vars(errors).items() if inspect.isclass(item) and item.__module__ == errors.__name__
    }
    drawn = {word for line in (errors.__doc__ or "").splitlines() for word in line.split() if word.endswith("Error")}
    assert defined == set(errors.__all__) == drawn


def test_message_is_one_line() -> None:
    assert str(errors.DataError("a\n  b\tc\r\n")) == "a b c"


def test_errors_survive_pickling_as_themselves() -> None:
    """Ray carries them between processes."""
    import pickle

    copy = pickle.loads(pickle.dumps(errors.PairError("two vocabularies")))  # noqa: S301 - made one line above
    assert type(copy) is errors.PairError
    assert str(copy) == "two vocabularies"
