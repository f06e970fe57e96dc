"""Prints, as JSON, the public names of modules, with their members and signatures: names.py MODULE ..."""

import importlib
import inspect
import json
import sys

# Names that a module merely uses: those of other projects.
OTHERS = ("typing", "collections", "functools", "pydantic", "pydantic_core", "dataclasses", "enum")
# Methods that matter though they begin with an underscore are part of what the class is; none are listed.


def parameters(thing):
    """Give [name, kind, default] of each parameter, or None where nothing tells."""
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return None
    rows = []
    for parameter in signature.parameters.values():
        default = parameter.default
        if default is not inspect.Parameter.empty:
            # An ellipsis stands for a default that the signature does not tell.
            default = "..." if default is ... else repr(default)
        rows.append([parameter.name, parameter.kind.name, None if default is inspect.Parameter.empty else default])
    return rows


def described(thing):
    """Describe a class with its members, a function, or another object."""
    if not inspect.isclass(thing):
        return {"parameters": parameters(thing) if callable(thing) else None, "members": {}}
    members = {}
    for name in dir(thing):
        if name.startswith("_") or hasattr(Exception, name):
            continue
        member = inspect.getattr_static(thing, name)
        bound = getattr(thing, name)
        members[name] = parameters(bound) if callable(bound) and not isinstance(member, property) else None
        # Methods of a class show themselves, static ones do not.
        if members[name] and members[name][0][0] in ("self", "cls"):
            members[name] = members[name][1:]
    return {"parameters": parameters(thing), "members": members}


def main():
    """Print the names of all modules given."""
    found = {}
    for module_name in sys.argv[1:]:
        module = importlib.import_module(module_name)
        names = {}
        for name in dir(module):
            thing = getattr(module, name)
            place = thing.__name__ if inspect.ismodule(thing) else getattr(thing, "__module__", None) or ""
            if name.startswith("_") or place.split(".")[0] in OTHERS:
                continue
            if inspect.ismodule(thing) and not place.startswith(module_name + "."):
                continue
            if not inspect.ismodule(thing) and not callable(thing):
                continue
            names[name] = described(thing)
        found[module_name] = names
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
