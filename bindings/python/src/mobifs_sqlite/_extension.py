"""The extension in this package, and how it is made known to Python's SQLite."""

from __future__ import annotations

import _sqlite3
import ctypes
import os
import sqlite3
import threading
from pathlib import Path

# The functions of SQLite that the extension works with, in the order of `struct mobifs_host`.
_HOST_FUNCTIONS = (
    "vfs_find",
    "vfs_register",
    "uri_parameter",
    "malloc64",
    "log",
    "open_v2",
    "exec",
    "close",
    "libversion_number",
    "create_function",
    "result_text",
)
_ENTRY_POINTS = {False: "sqlite3_mobifs_init", True: "sqlite3_mobifs_default_init"}

_lock = threading.Lock()
_registered: dict[bool, ctypes.CDLL] = {}


def extension_path() -> str:
    """The extension, for other programs: `.load` of the shell, `loadExtension` of Node.

    The variable `MOBIFS_SQLITE_EXTENSION` names another one.
    """
    chosen = os.environ.get("MOBIFS_SQLITE_EXTENSION")
    return chosen or str(Path(__file__).with_name("libmobifs.so"))


def register(default: bool = False) -> ctypes.CDLL:
    """Makes the VFS `mobifs` known to the SQLite of Python's `sqlite3`, once.

    With `default` every database that is opened from now on without the name of a VFS is
    opened through MobiFS. Raises `sqlite3.NotSupportedError` if that cannot be done in this
    Python.
    """
    with _lock:
        if default not in _registered:
            library = ctypes.CDLL(extension_path())
            library.mobifs_last_error.restype = ctypes.c_size_t
            library.mobifs_last_error.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
            library.mobifs_forget_last_error.restype = None
            library.mobifs_forget_last_error.argtypes = []
            if hasattr(sqlite3.Connection, "enable_load_extension"):
                _load(default)
            else:
                _hand_over(library, default)
            _registered[default] = library
        return _registered[default]


def last_error() -> str | None:
    """What went wrong last in a database that this thread uses, in words; None: nothing."""
    library = next(iter(_registered.values()), None)
    if library is None:
        return None
    length = library.mobifs_last_error(None, 0)
    if length == 0:
        return None
    text = ctypes.create_string_buffer(length + 1)
    library.mobifs_last_error(text, len(text))
    return text.value.decode(errors="replace")


def _load(default: bool) -> None:
    """As SQLite has it: the extension stays loaded after the connection is closed."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.enable_load_extension(True)
        entry_point = _ENTRY_POINTS[default]
        connection.execute("SELECT load_extension(?, ?)", (extension_path(), entry_point))
    except sqlite3.Error as error:
        raise sqlite3.NotSupportedError(f"SQLite cannot load MobiFS: {error}") from error
    finally:
        connection.close()


def _hand_over(library: ctypes.CDLL, default: bool) -> None:
    """Where Python was built without loading of extensions: the functions of the very library
    that `_sqlite3` is linked with are handed over."""
    host = (ctypes.c_void_p * len(_HOST_FUNCTIONS))()
    # Looks in the module itself and in what it is linked with.
    module = ctypes.CDLL(getattr(_sqlite3, "__file__", None))
    try:
        for place, name in enumerate(_HOST_FUNCTIONS):
            function = getattr(module, f"sqlite3_{name}")
            host[place] = ctypes.cast(function, ctypes.c_void_p).value
        version = module.sqlite3_libversion
    except AttributeError as error:
        raise sqlite3.NotSupportedError(
            "this Python's sqlite3 can neither load extensions (enable_load_extension) nor shows "
            f"its SQLite to others ({error}); use a Python whose sqlite3 can do one of the two"
        ) from error
    version.restype = ctypes.c_char_p
    if version().decode() != sqlite3.sqlite_version:
        raise sqlite3.NotSupportedError(
            f"this Python's sqlite3 uses SQLite {sqlite3.sqlite_version} but shows another one, "
            f"{version().decode()}; use a Python whose sqlite3 can load extensions"
        )
    library.mobifs_register_with.argtypes = [ctypes.c_void_p, ctypes.c_int]
    if library.mobifs_register_with(host, int(default)) != 0:
        raise sqlite3.NotSupportedError(
            f"SQLite {sqlite3.sqlite_version} does not take the VFS; 3.24 or newer is needed"
        )
