"""The version of this package, for the package itself and for its build."""

__all__ = ["__version__"]

__version__ = "0.1.0"
